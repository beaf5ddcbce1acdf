//! Thin pools as layers, on simulated devices: what reaches the data and the metadata device for what clients do, what messages do,
//! and what becomes of pools that are full, or whose data cannot be written.

mod failures;
mod look_ups;
mod rig;
mod scattered;
mod scenarios;
mod space;
mod verbs;
mod writes;

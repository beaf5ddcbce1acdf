//! Arrays as layers, on simulated devices: what lies on the members at each moment, what is done about failures, and
//! what is left after the power was cut.

mod added;
mod apart;
mod bad_blocks;
mod comes_back;
mod doubt;
mod dying;
mod failures;
mod filled;
mod grows;
mod parity;
mod parting;
mod records;
mod rig;
mod sync;
mod verbs;
mod writes;

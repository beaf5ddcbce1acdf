//! Xen's block interface over the simulator: guests that keep the protocol and check every byte, and guests that do not.

mod guest;
mod hostile;
mod resume;
mod rig;

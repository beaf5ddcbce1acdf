//! The simulated environment: the engine's own code on simulated devices, in virtual time, from a seed.
//!
//! A [`World`] has a clock, devices and faults. Each worker in it gets a [`SimEnv`], each device is a leaf ([`SimSource`]).
//! [`SimClient`]s are ports that issue random bios and compare every answer with an [`Oracle`], which knows what a
//! sector may hold; after [`World::power_cut`] a [`SimCheck`] reads everything and compares again.
//!
//! What may go wrong, and what must survive it:
//!
//! | region | what it may suffer | what must hold all the same |
//! | --- | --- | --- |
//! | a sector whose last write was acknowledged and then flushed, or was FUA | read errors, short reads, stalls, a cut | its bytes, exactly |
//! | a sector with writes that are acknowledged and not flushed | as above; in a cut each atomic unit keeps, loses or tears apart any of them, in any order; a lost flush forgets them | reads return the newest until a cut or a lost flush; then the flushed content or any one of those written since, whole |
//! | a sector under a write in flight, or after one that failed | old or new for each atomic unit, read by read while in flight | old or new, never a third; when it is at rest, the same at each reading |
//! | a sector that was discarded | as the write before it, or zeros | one of the two |
//! | neighbours of an unaligned write in its block | are read and written back | their bytes, as if nothing had happened to them |
//! | any sector | misdirected writes (off by default: no layer here has checksums, so they are *meant* to be found by the oracle) | nothing |
//! | a flush | fails, and the device forgets what it covered while the next one would succeed | after a failed flush of a leaf no flush of it is acknowledged any more |
//! | a bio | errors, short transfers, stalls of 31 s, batches in any order, wake-ups for nothing | completes exactly once, and with success only if all of it was done; with an error only if a fault struck |
//!
//! Not simulated: corruption at rest without an error, memory errors, clocks that jump.
//!
//! Everything follows from the seed: one seed is one history, on any machine ([`World::log_hash`]).
#![forbid(unsafe_code)]

mod check;
mod client;
mod content;
mod device;
mod elements;
mod env;
mod faults;
mod model;
mod net;
mod oracle;
mod random;
mod source;
mod world;

pub use check::SimCheck;
pub use client::{ClientConfig, Closing, Referee, SimClient};
pub use device::DeviceCounters;
pub use elements::{CallTimes, Cuts, Elements, Later};
pub use env::SimEnv;
pub use faults::{Chaos, Fault, Faults, Lies};
pub use model::{Cap, CapOn, CapUnit, DeviceModel, Latencies, Latency};
pub use net::{Host, Reaction};
pub use oracle::{FlushId, Oracle, ReadId, WriteId, describe, stamp};
pub use random::Random;
pub use source::SimSource;
pub use world::World;

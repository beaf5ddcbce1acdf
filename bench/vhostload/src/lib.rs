//! A vhost-user-blk front end in a process of its own: what a virtual machine monitor and its guest's driver do, without
//! either. Tests drive the export with it; `vhostload` measures with it.
//!
//! [`Client`] speaks the protocol, [`Guest`] is the memory, [`Ring`] the driver's side of a virtqueue (split or packed, with
//! or without indirect descriptors and event indices), [`Disk`] puts them together, and comes back after its server has died.
//! [`Bare`] is a back end without all that, to measure others by.
//!
//! It trusts its server as a guest trusts its device; errors are for a person who reads a test's output.
#![forbid(unsafe_code)]

mod bare;
mod client;
mod device;
mod disk;
mod guest;
mod load;
mod packed;
mod ring;
mod split;
mod write_log;

pub use bare::Bare;
pub use client::Client;
pub use device::{DeviceRing, Read};
pub use disk::{Disk, Finished, Options, Queue, Request};
pub use guest::{Area, Guest, Layout};
pub use load::{Load, Measured};
pub use packed::PackedDriver;
pub use ring::{Chain, Piece, Ring};
pub use split::SplitDriver;

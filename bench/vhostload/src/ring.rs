//! The driver's side of a virtqueue, of either kind.

use blockwork_format::vhost_user::VringAddr;
use blockwork_format::virtio::{Descriptor, PackedDescriptor, descriptor_flag};
use blockwork_memory::Buffer;

use crate::guest::{Area, Layout};
use crate::packed::PackedDriver;
use crate::split::SplitDriver;

/// A piece of a request's memory.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    /// The guest's address.
    pub address: u64,
    /// Bytes.
    pub len: u32,
    /// Whether the device writes it.
    pub writes: bool,
}

/// A request's memory, and where an indirect table for it may go.
#[derive(Clone, Debug)]
pub struct Chain<'a> {
    /// The driver's name for it, less than the ring's size.
    pub id: u16,
    /// Its pieces.
    pub pieces: &'a [Piece],
    /// Room for a table of them; none: they go into the ring itself.
    pub table: Option<Area>,
}

/// A virtqueue.
#[derive(Debug)]
pub enum Ring {
    /// With a ring for each direction.
    Split(SplitDriver),
    /// With one.
    Packed(PackedDriver),
}

impl Ring {
    /// Takes its place in `layout`.
    pub fn new(layout: &mut Layout, size: u16, is_packed: bool, event_idx: bool) -> Ring {
        if is_packed {
            Ring::Packed(PackedDriver::new(layout, size, event_idx))
        } else {
            Ring::Split(SplitDriver::new(layout, size, event_idx))
        }
    }

    /// Where it is, as queue `index`.
    pub fn address(&self, index: u32) -> VringAddr {
        let [descriptors, available, used] = match self {
            Ring::Split(ring) => ring.areas(),
            Ring::Packed(ring) => ring.areas(),
        }
        .map(Area::user);
        VringAddr { index, flags: 0, descriptors, used, available, log: 0 }
    }

    /// Where a new device begins.
    pub fn base(&self, memory: &Buffer) -> u32 {
        match self {
            Ring::Split(ring) => ring.base(memory),
            Ring::Packed(ring) => ring.base(),
        }
    }

    /// Makes a request available; false if there is no room.
    pub fn add(&mut self, memory: &Buffer, chain: &Chain<'_>) -> bool {
        match self {
            Ring::Split(ring) => ring.add(memory, chain),
            Ring::Packed(ring) => ring.add(memory, chain),
        }
    }

    /// Lets the device see what was added; whether it wants to be called.
    pub fn publish(&mut self, memory: &Buffer) -> bool {
        match self {
            Ring::Split(ring) => ring.publish(memory),
            Ring::Packed(ring) => ring.publish(memory),
        }
    }

    /// Has it say that the device wants no call: so a device leaves it that dies while it is busy.
    pub fn hush(&self, memory: &Buffer) {
        match self {
            Ring::Split(ring) => ring.hush(memory),
            Ring::Packed(ring) => ring.hush(memory),
        }
    }

    /// The next request that is done: its name, and what the device says it has written.
    pub fn used(&mut self, memory: &Buffer) -> Option<(u16, u32)> {
        match self {
            Ring::Split(ring) => ring.used(memory),
            Ring::Packed(ring) => ring.used(memory),
        }
    }

    /// Asks to be called, or not to be. If so: whether something is done already.
    pub fn want_calls(&mut self, memory: &Buffer, wanted: bool) -> bool {
        match self {
            Ring::Split(ring) => ring.want_calls(memory, wanted),
            Ring::Packed(ring) => ring.want_calls(memory, wanted),
        }
    }
}

/// Writes an indirect table as a split ring has it.
pub(crate) fn split_table(memory: &Buffer, at: Area, pieces: &[Piece]) {
    for (i, piece) in pieces.iter().enumerate() {
        let last = i + 1 == pieces.len();
        let flags = if last { 0 } else { descriptor_flag::NEXT }
            | if piece.writes { descriptor_flag::WRITE } else { 0 };
        let next = u16::try_from(i + 1).expect("a short table");
        let descriptor = Descriptor { address: piece.address, len: piece.len, flags, next };
        memory.write_at(at.offset + 16 * i, &descriptor.encode());
    }
}

/// Writes one as a packed ring has it.
pub(crate) fn packed_table(memory: &Buffer, at: Area, pieces: &[Piece]) {
    for (i, piece) in pieces.iter().enumerate() {
        let flags = if piece.writes { descriptor_flag::WRITE } else { 0 };
        let descriptor = PackedDescriptor { address: piece.address, len: piece.len, id: 0, flags };
        memory.write_at(at.offset + 16 * i, &descriptor.encode());
    }
}

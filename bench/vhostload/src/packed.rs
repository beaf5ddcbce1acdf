//! The driver's side of a packed virtqueue.

use std::sync::atomic::{Ordering, fence};

use blockwork_format::virtio::{PackedDescriptor, descriptor_flag, need_event, packed_event};
use blockwork_memory::Buffer;

use crate::guest::{Area, Layout};
use crate::ring::{Chain, packed_table};

/// A place in the ring, and on which turn around it.
#[derive(Clone, Copy, Debug)]
struct Position {
    index: u16,
    wrap: bool,
}

impl Position {
    fn advance(&mut self, by: u16, size: u16) {
        self.index += by;
        if self.index >= size {
            self.index -= size;
            self.wrap = !self.wrap;
        }
    }

    fn encode(self) -> u16 {
        self.index | if self.wrap { packed_event::WRAP } else { 0 }
    }
}

/// See the module.
#[derive(Debug)]
pub struct PackedDriver {
    size: u16,
    event_idx: bool,
    descriptors: Area,
    driver_event: Area,
    device_event: Area,
    next: Position,
    next_used: Position,
    free: u16,
    /// Descriptors that were made available since the device was last considered.
    unannounced: u16,
    /// By name: descriptors in the ring.
    counts: Vec<u16>,
}

impl PackedDriver {
    pub(crate) fn new(layout: &mut Layout, size: u16, event_idx: bool) -> PackedDriver {
        let begin = Position { index: 0, wrap: true };
        PackedDriver {
            size,
            event_idx,
            descriptors: layout.take(16 * usize::from(size), 16),
            driver_event: layout.take(packed_event::BYTES, 64),
            device_event: layout.take(packed_event::BYTES, 64),
            next: begin,
            next_used: begin,
            free: size,
            unannounced: 0,
            counts: vec![0; size.into()],
        }
    }

    pub(crate) fn areas(&self) -> [Area; 3] {
        [self.descriptors, self.driver_event, self.device_event]
    }

    pub(crate) fn base(&self) -> u32 {
        u32::from(self.next_used.encode()) << 16 | u32::from(self.next_used.encode())
    }

    fn flags_at(&self, at: Position) -> usize {
        self.descriptors.offset + 16 * usize::from(at.index) + 14
    }

    pub(crate) fn add(&mut self, memory: &Buffer, chain: &Chain<'_>) -> bool {
        let pieces = chain.pieces.len();
        let count = u16::try_from(if chain.table.is_some() { 1 } else { pieces }).expect("a short chain");
        if self.free < count {
            return false;
        }
        let mut first = None;
        let mut at = self.next;
        for i in 0..usize::from(count) {
            let (address, len, mut flags) = match chain.table {
                Some(table) => {
                    packed_table(memory, table, chain.pieces);
                    let len = u32::try_from(16 * pieces).expect("a short table");
                    (table.guest(), len, descriptor_flag::INDIRECT)
                }
                None => {
                    let piece = chain.pieces[i];
                    (piece.address, piece.len, if piece.writes { descriptor_flag::WRITE } else { 0 })
                }
            };
            if i + 1 < usize::from(count) {
                flags |= descriptor_flag::NEXT;
            }
            flags |= if at.wrap { descriptor_flag::AVAIL } else { descriptor_flag::USED };
            let place = self.flags_at(at);
            memory.write_at(place - 14, &address.to_le_bytes());
            memory.write_at(place - 6, &(u64::from(len) | u64::from(chain.id) << 32).to_le_bytes()[..6]);
            match first {
                None => first = Some((place, flags)),
                Some(_) => memory.store_u16(place, flags, Ordering::Release),
            }
            at.advance(1, self.size);
        }
        // The first one's flags make the chain available.
        let (place, flags) = first.expect("at least one piece");
        memory.store_u16(place, flags, Ordering::Release);
        self.next = at;
        self.free -= count;
        self.unannounced += count;
        self.counts[usize::from(chain.id)] = count;
        true
    }

    pub(crate) fn publish(&mut self, memory: &Buffer) -> bool {
        let added = std::mem::take(&mut self.unannounced);
        fence(Ordering::SeqCst);
        let flags = memory.load_u16(self.device_event.offset + packed_event::FLAGS, Ordering::Acquire);
        match flags {
            packed_event::DISABLE => false,
            packed_event::AT => {
                let event = memory.load_u16(self.device_event.offset, Ordering::Relaxed);
                let mut at = event & !packed_event::WRAP;
                if (event & packed_event::WRAP != 0) != self.next.wrap {
                    at = at.wrapping_sub(self.size);
                }
                need_event(at, self.next.index, self.next.index.wrapping_sub(added))
            }
            _ => true,
        }
    }

    pub(crate) fn hush(&self, memory: &Buffer) {
        let place = self.device_event.offset + packed_event::FLAGS;
        memory.store_u16(place, packed_event::DISABLE, Ordering::Relaxed);
    }

    fn is_used(&self, memory: &Buffer) -> bool {
        let flags = memory.load_u16(self.flags_at(self.next_used), Ordering::Acquire);
        let [available, used] = [descriptor_flag::AVAIL, descriptor_flag::USED].map(|flag| flags & flag != 0);
        available == used && used == self.next_used.wrap
    }

    pub(crate) fn used(&mut self, memory: &Buffer) -> Option<(u16, u32)> {
        if self.free == self.size || !self.is_used(memory) {
            return None;
        }
        let descriptor = PackedDescriptor::decode(&memory.read_16(self.flags_at(self.next_used) - 14));
        let count = std::mem::take(&mut self.counts[usize::from(descriptor.id)]);
        assert!(count > 0, "buffer {} was used and is not in flight", descriptor.id);
        self.next_used.advance(count, self.size);
        self.free += count;
        let written = if descriptor.flags & descriptor_flag::WRITE != 0 { descriptor.len } else { 0 };
        Some((descriptor.id, written))
    }

    pub(crate) fn want_calls(&mut self, memory: &Buffer, wanted: bool) -> bool {
        let flags = match (wanted, self.event_idx) {
            (false, _) => packed_event::DISABLE,
            (true, false) => packed_event::ENABLE,
            (true, true) => {
                memory.store_u16(self.driver_event.offset, self.next_used.encode(), Ordering::Relaxed);
                packed_event::AT
            }
        };
        memory.store_u16(self.driver_event.offset + packed_event::FLAGS, flags, Ordering::Release);
        fence(Ordering::SeqCst);
        self.free < self.size && self.is_used(memory)
    }
}

//! The driver's side of a split virtqueue.
//!
//! What a request takes is the guest's part of every measurement, so nothing here is put together in memory and read again at once: that
//! waits for all writes before it, of which some wait for the other processor.

use std::sync::atomic::{Ordering, fence};

use blockwork_format::virtio::{Descriptor, descriptor_flag, need_event, split};
use blockwork_memory::Buffer;

use crate::guest::{Area, Layout};
use crate::ring::{Chain, split_table};

/// See the module.
#[derive(Debug)]
pub struct SplitDriver {
    size: u16,
    event_idx: bool,
    descriptors: Area,
    available: Area,
    used: Area,
    /// Descriptors that are in no chain.
    free: Vec<u16>,
    /// By descriptor: the next one of its chain.
    next_of: Vec<u16>,
    /// By its first descriptor: how many a chain has, and its name.
    chains: Vec<(u16, u16)>,
    next: u16,
    published: u16,
    next_used: u16,
}

impl SplitDriver {
    pub(crate) fn new(layout: &mut Layout, size: u16, event_idx: bool) -> SplitDriver {
        SplitDriver {
            size,
            event_idx,
            descriptors: layout.take(16 * usize::from(size), 16),
            available: layout.take(split::avail_bytes(size), 64),
            used: layout.take(split::used_bytes(size), 64),
            free: (0..size).rev().collect(),
            next_of: vec![0; size.into()],
            chains: vec![(0, 0); size.into()],
            next: 0,
            published: 0,
            next_used: 0,
        }
    }

    pub(crate) fn areas(&self) -> [Area; 3] {
        [self.descriptors, self.available, self.used]
    }

    pub(crate) fn base(&self, memory: &Buffer) -> u32 {
        memory.load_u16(self.used.offset + split::INDEX, Ordering::Acquire).into()
    }

    fn descriptor(&self, memory: &Buffer, number: u16, descriptor: Descriptor) {
        memory.write_at(self.descriptors.offset + 16 * usize::from(number), &descriptor.encode());
    }

    /// A descriptor that is in no chain, where there is one.
    fn take(&mut self) -> u16 {
        self.free.pop().expect("as many as were counted")
    }

    pub(crate) fn add(&mut self, memory: &Buffer, chain: &Chain<'_>) -> bool {
        let count = if chain.table.is_some() { 1 } else { chain.pieces.len() };
        if count > self.free.len() {
            return false;
        }
        let head = self.take();
        match chain.table {
            Some(table) => {
                split_table(memory, table, chain.pieces);
                let len = u32::try_from(16 * chain.pieces.len()).expect("a short table");
                let flags = descriptor_flag::INDIRECT;
                self.descriptor(memory, head, Descriptor { address: table.guest(), len, flags, next: 0 });
            }
            None => {
                let mut number = head;
                for (i, piece) in chain.pieces.iter().enumerate() {
                    let is_last = i + 1 == count;
                    let next = if is_last { 0 } else { self.take() };
                    let flags = if is_last { 0 } else { descriptor_flag::NEXT }
                        | if piece.writes { descriptor_flag::WRITE } else { 0 };
                    let descriptor = Descriptor { address: piece.address, len: piece.len, flags, next };
                    self.descriptor(memory, number, descriptor);
                    self.next_of[usize::from(number)] = next;
                    number = next;
                }
            }
        }
        let place = split::ENTRIES + split::AVAIL_ENTRY * usize::from(self.next % self.size);
        memory.store_u16(self.available.offset + place, head, Ordering::Relaxed);
        self.next = self.next.wrapping_add(1);
        self.chains[usize::from(head)] = (u16::try_from(count).expect("a short chain"), chain.id);
        true
    }

    pub(crate) fn publish(&mut self, memory: &Buffer) -> bool {
        let old = std::mem::replace(&mut self.published, self.next);
        memory.store_u16(self.available.offset + split::INDEX, self.next, Ordering::Release);
        fence(Ordering::SeqCst);
        if self.event_idx {
            let event = memory.load_u16(self.used.offset + split::avail_event(self.size), Ordering::Relaxed);
            need_event(event, self.next, old)
        } else {
            memory.load_u16(self.used.offset, Ordering::Relaxed) & split::USED_NO_NOTIFY == 0
        }
    }

    pub(crate) fn hush(&self, memory: &Buffer) {
        if self.event_idx {
            let far = self.next.wrapping_add(u16::MAX / 2);
            memory.store_u16(self.used.offset + split::avail_event(self.size), far, Ordering::Relaxed);
        } else {
            memory.store_u16(self.used.offset, split::USED_NO_NOTIFY, Ordering::Relaxed);
        }
    }

    pub(crate) fn used(&mut self, memory: &Buffer) -> Option<(u16, u32)> {
        if memory.load_u16(self.used.offset + split::INDEX, Ordering::Acquire) == self.next_used {
            return None;
        }
        let place = split::ENTRIES + split::USED_ENTRY * usize::from(self.next_used % self.size);
        let [head, len] = [0, 4].map(|at| memory.load_u32(self.used.offset + place + at, Ordering::Relaxed));
        self.next_used = self.next_used.wrapping_add(1);
        let mut number = u16::try_from(head).expect("a descriptor of the ring");
        let (count, id) = std::mem::take(&mut self.chains[usize::from(number)]);
        assert!(count > 0, "descriptor {head} was used and is not in flight");
        for _ in 0..count {
            self.free.push(number);
            number = self.next_of[usize::from(number)];
        }
        Some((id, len))
    }

    pub(crate) fn want_calls(&mut self, memory: &Buffer, wanted: bool) -> bool {
        if self.event_idx {
            let event = if wanted { self.next_used } else { self.next_used.wrapping_sub(1) };
            memory.store_u16(self.available.offset + split::used_event(self.size), event, Ordering::Relaxed);
        } else {
            let flags = if wanted { 0 } else { split::AVAIL_NO_INTERRUPT };
            memory.store_u16(self.available.offset, flags, Ordering::Relaxed);
        }
        fence(Ordering::SeqCst);
        memory.load_u16(self.used.offset + split::INDEX, Ordering::Acquire) != self.next_used
    }
}

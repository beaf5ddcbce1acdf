//! A packed virtqueue: one ring of descriptors, which the driver makes available and the device uses in place. Each side counts
//! its turns around the ring in one bit.

use std::sync::atomic::Ordering;

use blockwork_format::virtio::{
    DESCRIPTOR_BYTES, PackedDescriptor, RING_SIZE_MAX, descriptor_flag, need_event, packed_event,
};
use blockwork_memory::{Buffer, GuestLayout, GuestMemory};

use super::near::{Ends, Tables, USUAL};
use super::{Chain, Head, INDIRECT_MAX, RingError, RingPlace, Table, area, descriptor, full_fence};
use crate::vhost::cut::stored;
use crate::vhost::marks::{Marks, PackedLeft, PackedRecovered, Recovered};

/// Where the flags are in a descriptor.
const FLAGS: usize = 14;

/// A place in the ring, and on which turn around it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Position {
    pub(crate) index: u16,
    pub(crate) wrap: bool,
}

impl Position {
    /// As the protocol and the event structures have it.
    fn decode(word: u16) -> Position {
        Position { index: word & !packed_event::WRAP, wrap: word & packed_event::WRAP != 0 }
    }

    fn encode(self) -> u16 {
        self.index | if self.wrap { packed_event::WRAP } else { 0 }
    }

    pub(crate) fn advance(&mut self, by: u16, size: u16) {
        self.index += by; // both at most 32768
        if self.index >= size {
            self.index -= size;
            self.wrap = !self.wrap;
        }
    }
}

/// See the module.
#[derive(Debug)]
pub struct PackedRing {
    size: u16,
    descriptors: Buffer,
    /// What the driver says about when it wants to be called.
    driver_event: Buffer,
    /// What we say.
    device_event: Buffer,
    event_idx: bool,
    next: Position,
    next_used: Position,
    /// Descriptors that were used since the driver was last considered.
    unannounced: u16,
    /// Buffers that are in flight, by the driver's name for them.
    taken: Vec<bool>,
    /// Descriptors in flight.
    in_flight: u16,
    /// Those of the request that was taken last.
    last: u16,
    marks: Option<Marks>,
    /// What was in flight when the device before us ended, the latest first.
    left: Vec<PackedLeft>,
}

impl PackedRing {
    /// Where it is to be: its size, its descriptors, where the next one is taken from, and where the next one is used.
    fn locate(
        layout: &GuestLayout,
        place: &RingPlace,
        base: u32,
    ) -> Result<(u16, Buffer, [Position; 2]), RingError> {
        let size = u16::try_from(place.size).ok().filter(|n| (1..=RING_SIZE_MAX).contains(n));
        let size = size.ok_or(RingError::Size(place.size))?;
        let bytes = DESCRIPTOR_BYTES * usize::from(size);
        let descriptors = area(layout, "descriptors", place.address.descriptors, bytes, 16)?;
        let halves = [base & 0xffff, base >> 16].map(|half| u16::try_from(half).expect("16 bits"));
        let begins = halves.map(Position::decode);
        for at in begins {
            if at.index >= size {
                let what = "where to begin";
                return Err(RingError::Number { what, found: at.index, size: size.into() });
            }
        }
        Ok((size, descriptors, begins))
    }

    pub(super) fn recover(
        layout: &GuestLayout,
        place: &RingPlace,
        base: u32,
        mut marks: Marks,
    ) -> Result<Recovered<PackedRecovered>, RingError> {
        let (size, descriptors, [_, next_used]) = PackedRing::locate(layout, place, base)?;
        let recovered = marks.recover_packed(next_used, size, |at| is_available(&descriptors, at))?;
        Ok(marks.with(recovered))
    }

    pub(super) fn new(
        layout: &GuestLayout,
        place: &RingPlace,
        base: u32,
        recovered: Option<Recovered<PackedRecovered>>,
    ) -> Result<PackedRing, RingError> {
        let (size, descriptors, [next, next_used]) = PackedRing::locate(layout, place, base)?;
        let event = |what, address| area(layout, what, address, packed_event::BYTES, 4);
        let mut ring = PackedRing {
            size,
            descriptors,
            driver_event: event("driver's event words", place.address.available)?,
            device_event: event("device's event words", place.address.used)?,
            event_idx: place.event_idx,
            next,
            next_used,
            unannounced: 0,
            taken: vec![false; usize::from(size)],
            in_flight: 0,
            last: 1,
            marks: None,
            left: Vec::new(),
        };
        if let Some((marks, recovered)) = recovered.map(Recovered::take_up) {
            ring.marks = Some(marks);
            ring.next_used = recovered.used;
            ring.next = recovered.used;
            let in_flight: u32 = recovered.left.iter().map(|left| u32::from(left.head.count())).sum();
            if in_flight > size.into() {
                return Err(RingError::Marks(format!("{in_flight} descriptors are in flight, of {size}")));
            }
            ring.in_flight = u16::try_from(in_flight).expect("at most the ring's size");
            ring.next.advance(ring.in_flight, size);
            ring.left = recovered.left;
        }
        Ok(ring)
    }

    pub(super) fn resume(&mut self, memory: &GuestMemory, chain: &mut Chain) -> Result<bool, RingError> {
        let Some(left) = self.left.pop() else { return Ok(false) };
        // The ring's own descriptors may have been overwritten by those that were used: the marks have copies.
        chain.head = left.head;
        self.last = left.head.count();
        self.name(left.head.id())?;
        self.gather(memory, &left.descriptors, chain)?;
        Ok(true)
    }

    #[inline]
    fn is_available(&self, at: Position) -> bool {
        is_available(&self.descriptors, at)
    }

    #[inline]
    pub(super) fn has_more(&self) -> bool {
        self.in_flight < self.size && self.is_available(self.next)
    }

    #[inline]
    pub(super) fn waiting(&self) -> u16 {
        if !self.has_more() {
            return 0;
        }
        let room = self.size - self.in_flight;
        let mut found = 1;
        // The double of it is no more than the largest ring has, and so never too much for its type.
        while found <= room / 2 {
            let mut at = self.next;
            at.advance(2 * found - 1, self.size);
            if !self.is_available(at) {
                break;
            }
            found *= 2;
        }
        found
    }

    pub(super) fn next(&mut self, memory: &GuestMemory, chain: &mut Chain) -> Result<bool, RingError> {
        if !self.has_more() {
            return Ok(false);
        }
        let mut all = smallvec::SmallVec::<[PackedDescriptor; 4]>::new();
        let mut at = self.next;
        loop {
            let last = PackedDescriptor::decode(&descriptor(&self.descriptors, at.index.into()));
            all.push(last);
            at.advance(1, self.size);
            if !is(last.flags, descriptor_flag::NEXT) {
                break;
            }
            if all.len() >= usize::from(self.size - self.in_flight).min(INDIRECT_MAX) {
                return Err(RingError::Long(all.len()));
            }
        }
        let id = all.last().expect("at least one").id;
        self.name(id)?;
        let count = u16::try_from(all.len()).expect("at most as many as the ring has");
        let mark = self.marks.as_mut().map_or(Ok(0), |marks| marks.take_packed(&all))?;
        chain.head = Head::new(id, count, mark);
        self.next = at;
        self.in_flight += count;
        self.last = count;
        self.gather(memory, &all, chain)?;
        Ok(true)
    }

    /// Notes that the buffer of this name is in flight.
    fn name(&mut self, id: u16) -> Result<(), RingError> {
        let size = self.taken.len();
        let number = RingError::Number { what: "the id of a buffer", found: id, size };
        let taken = self.taken.get_mut(usize::from(id)).ok_or(number)?;
        if std::mem::replace(taken, true) {
            return Err(RingError::Twice(id));
        }
        Ok(())
    }

    fn gather(
        &self,
        memory: &GuestMemory,
        all: &[PackedDescriptor],
        chain: &mut Chain,
    ) -> Result<(), RingError> {
        for at in all {
            if !is(at.flags, descriptor_flag::INDIRECT) {
                chain.add(memory, at.address, at.len, at.flags)?;
                continue;
            }
            if all.len() > 1 {
                return Err(RingError::Indirect("in a chain"));
            }
            // All of a table is one chain, in its order; of the flags only that it is written counts.
            let (table, count) = Table::new(memory, at.address, at.len)?;
            for i in 0..count {
                let at = PackedDescriptor::decode(&table.descriptor(i));
                if is(at.flags, descriptor_flag::INDIRECT) {
                    return Err(RingError::Indirect("in an indirect table"));
                }
                chain.add(memory, at.address, at.len, at.flags)?;
            }
        }
        Ok(())
    }

    /// Where the next `most` requests begin and end. Tells how many it has looked at.
    pub(super) fn ends(&self, memory: &GuestMemory, most: usize, mut found: impl FnMut(Ends)) -> usize {
        let mut tables = Tables::default();
        let (mut at, mut left, mut count) = (self.next, self.size - self.in_flight, 0);
        let read = |at: &mut Position, left: &mut u16| {
            let read = PackedDescriptor::decode(&descriptor(&self.descriptors, at.index.into()));
            at.advance(1, self.size);
            *left -= 1;
            read
        };
        while count < most && left > 0 && self.is_available(at) {
            count += 1;
            let first = read(&mut at, &mut left);
            if is(first.flags, descriptor_flag::INDIRECT) {
                tables.add(memory, first.address, first.len);
                continue;
            }
            let mut last = first;
            for _ in 1..USUAL {
                if is(last.flags, descriptor_flag::NEXT) && left > 0 {
                    last = read(&mut at, &mut left);
                }
            }
            found([first.address, last.address]);
            if is(last.flags, descriptor_flag::NEXT) {
                // Where the next one begins is behind the end of this.
                break;
            }
        }
        tables.ends(memory, found);
        count
    }

    pub(super) fn is_full(&self) -> bool {
        self.size - self.in_flight < self.last
    }

    #[inline]
    pub(super) fn complete(&mut self, head: Head, written: u32) {
        let at = self.next_used;
        let place = DESCRIPTOR_BYTES * usize::from(at.index);
        let mut bytes = [0; 6];
        bytes[..4].copy_from_slice(&written.to_le_bytes());
        bytes[4..].copy_from_slice(&head.id().to_le_bytes());
        let mut next = at;
        next.advance(head.count(), self.size);
        if let Some(marks) = &mut self.marks {
            marks.complete_packed(head, next);
        }
        let buffer = &self.descriptors;
        buffer.write_at(place + 8, &bytes);
        stored();
        let wrap = if at.wrap { descriptor_flag::AVAIL | descriptor_flag::USED } else { 0 };
        let flags = if written > 0 { wrap | descriptor_flag::WRITE } else { wrap };
        buffer.store_u16(flags_of(at.index), flags, Ordering::Release);
        stored();
        if let Some(marks) = &mut self.marks {
            marks.published_packed(head);
        }
        self.next_used = next;
        self.unannounced = self.unannounced.saturating_add(head.count());
        self.in_flight -= head.count();
        self.taken[usize::from(head.id())] = false;
    }

    /// What is used is seen at once.
    pub(super) fn publish(&mut self) -> bool {
        let used = std::mem::take(&mut self.unannounced);
        if used == 0 {
            return false;
        }
        full_fence();
        match self.driver_event.load_u16(packed_event::FLAGS, Ordering::Acquire) {
            packed_event::DISABLE => false,
            packed_event::AT if self.event_idx => {
                let event = Position::decode(self.driver_event.load_u16(0, Ordering::Relaxed));
                let new = self.next_used.index;
                let mut at = event.index;
                if event.wrap != self.next_used.wrap {
                    at = at.wrapping_sub(self.size);
                }
                need_event(at, new, new.wrapping_sub(used))
            }
            _ => true,
        }
    }

    pub(super) fn enable_calls(&mut self) -> bool {
        let flags = if self.event_idx {
            self.device_event.store_u16(0, self.next.encode(), Ordering::Relaxed);
            packed_event::AT
        } else {
            packed_event::ENABLE
        };
        self.device_event.store_u16(packed_event::FLAGS, flags, Ordering::Release);
        full_fence();
        self.has_more()
    }

    pub(super) fn disable_calls(&mut self) {
        self.device_event.store_u16(packed_event::FLAGS, packed_event::DISABLE, Ordering::Relaxed);
    }

    /// See [`SplitRing::tell_tale`](super::split::SplitRing::tell_tale).
    pub(super) fn tell_tale(&self) -> (&Buffer, usize, u16) {
        let (buffer, place) = (&self.descriptors, flags_of(self.next.index));
        (buffer, place, buffer.load_u16(place, Ordering::Relaxed))
    }

    pub(super) fn base(&self) -> u32 {
        u32::from(self.next.encode()) | u32::from(self.next_used.encode()) << 16
    }
}

/// Whether the driver has made the descriptor at a place available, and nobody has used it.
#[inline]
fn is_available(descriptors: &Buffer, at: Position) -> bool {
    let flags = descriptors.load_u16(flags_of(at.index), Ordering::Acquire);
    is(flags, descriptor_flag::AVAIL) == at.wrap && is(flags, descriptor_flag::USED) != at.wrap
}

fn flags_of(index: u16) -> usize {
    DESCRIPTOR_BYTES * usize::from(index) + FLAGS
}

fn is(flags: u16, flag: u16) -> bool {
    flags & flag != 0
}

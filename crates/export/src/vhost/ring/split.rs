//! A split virtqueue: descriptors, a ring in which the driver makes chains of them available, a ring in which the device says
//! that they are used.

use std::sync::atomic::Ordering;

use blockwork_format::virtio::{
    DESCRIPTOR_BYTES, Descriptor, RING_SIZE_MAX, descriptor_flag, need_event, split,
};
use blockwork_memory::{Buffer, GuestLayout, GuestMemory};

use super::near::{Ends, Tables, USUAL};
use super::{Chain, Head, INDIRECT_MAX, RingError, RingPlace, Table, area, descriptor, full_fence};
use crate::vhost::cut::stored;
use crate::vhost::marks::{Marks, Recovered};

/// See the module.
#[derive(Debug)]
pub struct SplitRing {
    size: u16,
    descriptors: Buffer,
    available: Buffer,
    used: Buffer,
    event_idx: bool,
    /// Where the next chain is taken from.
    next: u16,
    /// The driver's index, when it was last loaded.
    seen: u16,
    /// Where the next used chain is entered.
    next_used: u16,
    /// The used index that the driver sees.
    published: u16,
    /// Chains that are in flight, by their first descriptor.
    taken: Vec<bool>,
    /// Descriptors that they have in the ring. One may be in several chains, so that they are more than there are.
    in_flight: usize,
    /// Those of the chain that was taken last.
    last: u16,
    marks: Option<Marks>,
    /// What was in flight when the device before us ended, the latest first.
    left: Vec<u16>,
}

impl SplitRing {
    /// Where it is to be: its size, its used entries, and the used index that the driver sees.
    fn locate(layout: &GuestLayout, place: &RingPlace) -> Result<(u16, Buffer, u16), RingError> {
        let size = u16::try_from(place.size).ok().filter(|n| n.is_power_of_two() && *n <= RING_SIZE_MAX);
        let size = size.ok_or(RingError::Size(place.size))?;
        let used = area(layout, "used entries", place.address.used, split::used_bytes(size), 4)?;
        // The used index is the device's own; the driver only reads it, so it is where we were.
        let published = used.load_u16(split::INDEX, Ordering::Acquire);
        Ok((size, used, published))
    }

    pub(super) fn recover(
        layout: &GuestLayout,
        place: &RingPlace,
        mut marks: Marks,
    ) -> Result<Recovered<Vec<u16>>, RingError> {
        let (_, _, published) = SplitRing::locate(layout, place)?;
        let left = marks.recover_split(published)?;
        Ok(marks.with(left))
    }

    pub(super) fn new(
        layout: &GuestLayout,
        place: &RingPlace,
        base: u32,
        recovered: Option<Recovered<Vec<u16>>>,
    ) -> Result<SplitRing, RingError> {
        let (size, used, published) = SplitRing::locate(layout, place)?;
        let bytes = DESCRIPTOR_BYTES * usize::from(size);
        let descriptors = area(layout, "descriptors", place.address.descriptors, bytes, 16)?;
        let available =
            area(layout, "available entries", place.address.available, split::avail_bytes(size), 2)?;
        let base = u16::try_from(base & 0xffff).expect("16 bits");
        let mut ring = SplitRing {
            size,
            descriptors,
            available,
            used,
            event_idx: place.event_idx,
            next: base,
            seen: base,
            next_used: published,
            published,
            taken: vec![false; usize::from(size)],
            in_flight: 0,
            last: 1,
            marks: None,
            left: Vec::new(),
        };
        if let Some((marks, left)) = recovered.map(Recovered::take_up) {
            (ring.marks, ring.left) = (Some(marks), left);
            if let Some(head) = ring.left.iter().find(|head| **head >= size) {
                return Err(RingError::Marks(format!("descriptor {head} is in flight, of {size}")));
            }
            let in_flight = u16::try_from(ring.left.len()).expect("no more than descriptors");
            ring.next = published.wrapping_add(in_flight);
            ring.seen = ring.next;
        }
        Ok(ring)
    }

    pub(super) fn resume(&mut self, memory: &GuestMemory, chain: &mut Chain) -> Result<bool, RingError> {
        let Some(head) = self.left.pop() else { return Ok(false) };
        self.taken[usize::from(head)] = true;
        self.walk(memory, head, chain)?;
        Ok(true)
    }

    #[inline]
    pub(super) fn has_more(&self) -> bool {
        self.available.load_u16(split::INDEX, Ordering::Acquire) != self.next
    }

    #[inline]
    pub(super) fn waiting(&self) -> u16 {
        self.available.load_u16(split::INDEX, Ordering::Acquire).wrapping_sub(self.next).min(self.size)
    }

    #[inline]
    fn available(&self, index: u16) -> u16 {
        let place = split::ENTRIES + split::AVAIL_ENTRY * usize::from(index & (self.size - 1));
        self.available.load_u16(place, Ordering::Relaxed)
    }

    #[inline]
    pub(super) fn next(&mut self, memory: &GuestMemory, chain: &mut Chain) -> Result<bool, RingError> {
        if self.next == self.seen {
            let found = self.available.load_u16(split::INDEX, Ordering::Acquire);
            if found.wrapping_sub(self.next) > self.size {
                return Err(RingError::RunAway { found, next: self.next, size: self.size });
            }
            self.seen = found;
            if found == self.next {
                return Ok(false);
            }
        }
        let head = self.available(self.next);
        match self.taken.get_mut(usize::from(head)) {
            None => {
                let size = usize::from(self.size);
                return Err(RingError::Number { what: "an available descriptor", found: head, size });
            }
            Some(true) => return Err(RingError::Twice(head)),
            Some(taken) => *taken = true,
        }
        if let Some(marks) = &mut self.marks {
            marks.take_split(head);
        }
        self.next = self.next.wrapping_add(1);
        self.walk(memory, head, chain)?;
        Ok(true)
    }

    /// Collects the memory of a chain.
    #[inline(always)]
    fn walk(&mut self, memory: &GuestMemory, head: u16, chain: &mut Chain) -> Result<(), RingError> {
        let first = Descriptor::decode(&descriptor(&self.descriptors, usize::from(head)));
        let count = if first.has(descriptor_flag::INDIRECT) {
            walk_table(memory, first, 0, chain)?;
            1
        } else {
            let list = |i| descriptor(&self.descriptors, i);
            let end = |at, before, chain: &mut Chain| walk_end(memory, at, before, chain);
            walk_list(memory, list, (usize::from(self.size), 0), first, chain, end)?
        };
        chain.head = Head::new(head, count, 0);
        self.in_flight += usize::from(count);
        self.last = count;
        Ok(())
    }

    /// Where the next `most` requests begin and end, of those that wait. Tells how many it has looked at.
    pub(super) fn ends(&self, memory: &GuestMemory, most: usize, mut found: impl FnMut(Ends)) -> usize {
        let (mut tables, mut count) = (Tables::default(), 0);
        for nth in (0..self.waiting()).take(most) {
            let head = self.available(self.next.wrapping_add(nth));
            if head >= self.size {
                break;
            }
            count += 1;
            let first = Descriptor::decode(&descriptor(&self.descriptors, head.into()));
            if first.has(descriptor_flag::INDIRECT) {
                tables.add(memory, first.address, first.len);
                continue;
            }
            let mut last = first;
            for _ in 1..USUAL {
                if last.has(descriptor_flag::NEXT) && last.next < self.size {
                    last = Descriptor::decode(&descriptor(&self.descriptors, last.next.into()));
                }
            }
            found([first.address, last.address]);
        }
        tables.ends(memory, found);
        count
    }

    pub(super) fn is_full(&self) -> bool {
        self.in_flight + usize::from(self.last) > usize::from(self.size)
    }

    #[inline]
    pub(super) fn complete(&mut self, head: Head, written: u32) {
        let place = split::ENTRIES + split::USED_ENTRY * usize::from(self.next_used & (self.size - 1));
        let mut entry = [0; split::USED_ENTRY];
        entry[..4].copy_from_slice(&u32::from(head.id()).to_le_bytes());
        entry[4..].copy_from_slice(&written.to_le_bytes());
        self.used.write_at(place, &entry);
        stored();
        self.next_used = self.next_used.wrapping_add(1);
        self.taken[usize::from(head.id())] = false;
        self.in_flight -= usize::from(head.count());
        if let Some(marks) = &mut self.marks {
            marks.complete_split(head.id());
        }
    }

    #[inline]
    pub(super) fn publish(&mut self) -> bool {
        if self.published == self.next_used {
            return false;
        }
        let old = std::mem::replace(&mut self.published, self.next_used);
        self.used.store_u16(split::INDEX, self.next_used, Ordering::Release);
        stored();
        if let Some(marks) = &mut self.marks {
            marks.published_split(self.next_used);
        }
        full_fence();
        if self.event_idx {
            let event = self.available.load_u16(split::used_event(self.size), Ordering::Relaxed);
            need_event(event, self.next_used, old)
        } else {
            self.available.load_u16(0, Ordering::Relaxed) & split::AVAIL_NO_INTERRUPT == 0
        }
    }

    pub(super) fn enable_calls(&mut self) -> bool {
        if self.event_idx {
            self.used.store_u16(split::avail_event(self.size), self.next, Ordering::Relaxed);
        } else {
            self.used.store_u16(0, 0, Ordering::Relaxed);
        }
        full_fence();
        self.has_more()
    }

    pub(super) fn disable_calls(&mut self) {
        if self.event_idx {
            // One that it has passed already.
            let passed = self.next.wrapping_sub(1);
            self.used.store_u16(split::avail_event(self.size), passed, Ordering::Relaxed);
        } else {
            self.used.store_u16(0, split::USED_NO_NOTIFY, Ordering::Relaxed);
        }
    }

    /// The word that tells of the next request, and what it is while there is none.
    pub(super) fn tell_tale(&self) -> (&Buffer, usize, u16) {
        (&self.available, split::INDEX, self.next)
    }

    pub(super) fn base(&self) -> u32 {
        self.next.into()
    }
}

/// Collects the memory of an indirect table, behind so many descriptors of its chain.
#[inline(always)]
fn walk_table(memory: &GuestMemory, at: Descriptor, before: u16, chain: &mut Chain) -> Result<(), RingError> {
    if at.has(descriptor_flag::NEXT) {
        return Err(RingError::Indirect("that goes on"));
    }
    if usize::from(before) == INDIRECT_MAX {
        return Err(RingError::Long(INDIRECT_MAX));
    }
    let nested = |_, _, _: &mut Chain| Err(RingError::Indirect("in an indirect table"));
    let (table, count) = Table::new(memory, at.address, at.len)?;
    let first = Descriptor::decode(&table.descriptor(0));
    if first.has(descriptor_flag::INDIRECT) {
        return nested(first, before, chain).map(drop);
    }
    walk_list(memory, |i| table.descriptor(i), (count, before), first, chain, nested).map(drop)
}

/// Likewise, where the chain began in the ring: no driver that we know of has it so, but any may. Tells how many descriptors it has in the ring.
#[cold]
fn walk_end(memory: &GuestMemory, at: Descriptor, before: u16, chain: &mut Chain) -> Result<u16, RingError> {
    walk_table(memory, at, before, chain)?;
    Ok(before + 1)
}

/// Collects the memory of a chain in a list of `count` descriptors, behind so many others. Tells how many it has then; `indirect` is told of the
/// first one that is a table.
#[inline]
fn walk_list(
    memory: &GuestMemory,
    list: impl Fn(usize) -> [u8; DESCRIPTOR_BYTES],
    (count, before): (usize, u16),
    first: Descriptor,
    chain: &mut Chain,
    indirect: impl FnOnce(Descriptor, u16, &mut Chain) -> Result<u16, RingError>,
) -> Result<u16, RingError> {
    let (mut at, mut length) = (first, before + 1);
    let most = (usize::from(before) + count).min(INDIRECT_MAX);
    loop {
        chain.add(memory, at.address, at.len, at.flags)?;
        if !at.has(descriptor_flag::NEXT) {
            return Ok(length);
        }
        let next = usize::from(at.next);
        if next >= count {
            return Err(RingError::Number { what: "the next descriptor", found: at.next, size: count });
        }
        if usize::from(length) == most {
            return Err(RingError::Long(most));
        }
        at = Descriptor::decode(&list(next));
        if at.has(descriptor_flag::INDIRECT) {
            return indirect(at, length, chain);
        }
        length += 1;
    }
}

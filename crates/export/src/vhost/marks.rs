//! Marks of the requests in flight, in memory that the front end keeps, so that a server that comes after this one takes them
//! up: none is lost, and none that was answered is done again.
//!
//! Invariants:
//! 1. The steps of each change are in the order that the protocol gives, which makes them right wherever we may be killed
//!    between two of them; what was stored is what is there then (the memory outlives the process). What has to change in one
//!    step is one store.
//! 2. The front end can write here, too. Only [`Marks::recover_split`] and [`Marks::recover_packed`] read, once; each index is
//!    checked, and no list is followed for longer than there are entries. Later everything is known here, and only written.
//! 3. They are looked through by the session, before the worker hears of the ring ([`Recovered`]): that takes a millisecond or two for each large ring, for
//!    which the guests of others would wait.
//!
//! Source: `docs/interop/vhost-user.rst` of QEMU, "Inflight I/O tracking".

use std::sync::atomic::{Ordering, fence};

use blockwork_format::vhost_user::inflight::{self, ENTRIES, VERSION, VERSION_1, packed, split};
use blockwork_format::virtio::PackedDescriptor;
use blockwork_memory::{Buffer, Place};
use smallvec::SmallVec;

use super::cut::stored;
use super::ring::{Head, Position, RingError};

/// One queue's marks.
#[derive(Debug)]
pub struct Marks {
    area: Buffer,
    known: Known,
}

/// Marks that were looked through, which takes its time: whoever serves the queue has better things to do. They belong to no thread.
#[derive(Debug)]
pub struct Recovered<Left> {
    known: Known,
    left: Left,
}

/// What is known of marks.
#[derive(Debug)]
struct Known {
    place: Place,
    size: u16,
    is_packed: bool,
    counter: u64,
    /// Split: what was entered into the used ring since the driver last saw it.
    batch: Vec<u16>,
    /// Split: what was entered last.
    last_of_batch: u16,
    /// Packed: where the next descriptor is used.
    used: Position,
    /// Packed: entries that are free; the last one is taken next.
    free: Vec<u16>,
    /// Packed: by the first entry of a chain, the others, and its last.
    chains: Vec<SmallVec<[u16; 4]>>,
}

/// A request of a packed ring that was in flight.
#[derive(Debug)]
pub struct PackedLeft {
    pub(super) head: Head,
    pub(super) descriptors: Vec<PackedDescriptor>,
    counter: u64,
}

/// What the marks of a packed ring say.
#[derive(Debug)]
pub struct PackedRecovered {
    /// Where the next descriptor is used.
    pub(super) used: Position,
    /// What was in flight, the latest first.
    pub(super) left: Vec<PackedLeft>,
}

fn wrong(what: String) -> RingError {
    RingError::Marks(what)
}

impl<Left> Recovered<Left> {
    /// The marks, for this thread, and what was in flight.
    pub(super) fn take_up(self) -> (Marks, Left) {
        (Marks::of(self.known), self.left)
    }
}

impl Marks {
    /// The marks of a queue of `size` descriptors, at `place`.
    ///
    /// # Errors
    /// There are no [`inflight::queue_bytes`] at that place: its memory came when the ring was to be of the other kind.
    pub fn new(place: &Place, size: u16, is_packed: bool) -> Result<Marks, RingError> {
        let bytes = inflight::queue_bytes(size, is_packed);
        let room = place.mapping.len().saturating_sub(place.offset);
        if bytes > room {
            return Err(wrong(format!("they have {room} bytes, expected {bytes} for {size} descriptors")));
        }
        let known = Known {
            place: place.clone(),
            size,
            is_packed,
            counter: 0,
            batch: Vec::new(),
            last_of_batch: 0,
            used: Position { index: 0, wrap: false },
            free: Vec::new(),
            chains: vec![SmallVec::new(); if is_packed { size.into() } else { 0 }],
        };
        Ok(Marks::of(known))
    }

    /// Those of which that is known, for this thread.
    fn of(known: Known) -> Marks {
        let bytes = inflight::queue_bytes(known.size, known.is_packed);
        Marks { area: Buffer::of_mapping(&known.place.mapping, known.place.offset, bytes), known }
    }

    /// With what was in flight, for another thread.
    pub(super) fn with<Left>(self, left: Left) -> Recovered<Left> {
        Recovered { known: self.known, left }
    }

    /// Checks that there is an entry for each descriptor of a ring.
    pub(super) fn check_room(&self, descriptors: u32) -> Result<(), RingError> {
        if descriptors <= self.known.size.into() {
            return Ok(());
        }
        let size = self.known.size;
        Err(wrong(format!(
            "they are for {size} descriptors, expected at least {descriptors} as the ring has"
        )))
    }

    fn entry(&self, number: u16) -> usize {
        inflight::entry(number, self.known.is_packed)
    }

    fn load(&self, offset: usize) -> u16 {
        self.area.load_u16(offset, Ordering::Relaxed)
    }

    fn store(&self, offset: usize, value: u16) {
        self.area.store_u16(offset, value, Ordering::Relaxed);
        stored();
    }

    fn write(&self, offset: usize, bytes: &[u8]) {
        self.area.write_at(offset, bytes);
        stored();
    }

    fn load_byte(&self, offset: usize) -> u8 {
        let mut byte = [0];
        self.area.read_at(offset, &mut byte);
        byte[0]
    }

    fn load_counter(&self, offset: usize) -> u64 {
        let mut bytes = [0; 8];
        self.area.read_at(offset, &mut bytes);
        u64::from_ne_bytes(bytes)
    }

    /// An index that the memory holds.
    fn index(&self, offset: usize, what: &str, size: u16) -> Result<u16, RingError> {
        let found = self.load(offset);
        if found < size {
            Ok(found)
        } else {
            Err(wrong(format!("{what} is {found}, expected less than {size}")))
        }
    }

    /// Whether the memory was used before; it is made ready if not.
    fn was_used(&self) -> Result<bool, RingError> {
        match self.load(VERSION) {
            0 => {
                self.store(ENTRIES, self.known.size);
                fence(Ordering::Release);
                self.store(VERSION, VERSION_1);
                Ok(false)
            }
            VERSION_1 => {
                let found = self.load(ENTRIES);
                let expected = self.known.size;
                if found == expected {
                    return Ok(true);
                }
                Err(wrong(format!("they are for {found} descriptors, expected {expected} as the ring has")))
            }
            other => Err(wrong(format!("their version is {other}, expected {VERSION_1}"))),
        }
    }

    /// The chains that were in flight, the latest first, when the driver sees `used` as the used index.
    pub(super) fn recover_split(&mut self, used: u16) -> Result<Vec<u16>, RingError> {
        if self.was_used()? {
            self.finish_batch(used)?;
        }
        self.known.last_of_batch = self.load(LAST_OF_BATCH);
        self.store(split::USED_INDEX, used);
        let mut left: Vec<(u64, u16)> = (0..self.known.size)
            .filter(|&head| self.load_byte(self.entry(head) + split::INFLIGHT) != 0)
            .map(|head| (self.load_counter(self.entry(head) + split::COUNTER), head))
            .collect();
        left.sort_unstable_by_key(|&(counter, _)| std::cmp::Reverse(counter));
        self.known.counter = left.first().map_or(0, |(counter, _)| counter.wrapping_add(1));
        Ok(left.into_iter().map(|(_, head)| head).collect())
    }

    /// Clears the marks of a batch that the driver has seen, whether or not the one before us came to that.
    fn finish_batch(&self, used: u16) -> Result<(), RingError> {
        let batch = used.wrapping_sub(self.load(split::USED_INDEX));
        if batch > self.known.size {
            return Ok(()); // memory of before a migration: it marks nothing
        }
        let mut at = LAST_OF_BATCH;
        for _ in 0..batch {
            let head = self.index(at, "the last batch's next", self.known.size)?;
            self.write(self.entry(head) + split::INFLIGHT, &[0]);
            at = self.entry(head) + split::NEXT;
        }
        Ok(())
    }

    /// A chain is taken.
    #[inline]
    pub(super) fn take_split(&mut self, head: u16) {
        let entry = self.entry(head);
        self.write(entry + split::COUNTER, &self.known.counter.to_ne_bytes());
        fence(Ordering::Release);
        self.write(entry + split::INFLIGHT, &[1]);
        fence(Ordering::Release);
        self.known.counter = self.known.counter.wrapping_add(1);
    }

    /// It was entered into the used ring, where the driver does not see it yet.
    #[inline]
    pub(super) fn complete_split(&mut self, head: u16) {
        self.store(self.entry(head) + split::NEXT, self.known.last_of_batch);
        fence(Ordering::Release);
        self.store(LAST_OF_BATCH, head);
        fence(Ordering::Release);
        self.known.last_of_batch = head;
        self.known.batch.push(head);
    }

    /// The driver sees all that was entered: the used index is `used`.
    #[inline]
    pub(super) fn published_split(&mut self, used: u16) {
        fence(Ordering::Release);
        for head in self.known.batch.drain(..) {
            self.area.write_at(inflight::entry(head, false) + split::INFLIGHT, &[0]);
            stored();
        }
        fence(Ordering::Release);
        self.store(split::USED_INDEX, used);
    }

    /// What was in flight in a ring of `ring` descriptors. `begin` is where that begins if the marks are new; `is_available` says
    /// whether the descriptor at a place is still one that the driver has made available there.
    ///
    /// Where the two positions differ, a chain was about to be used. The first descriptor of that place tells whether the driver has
    /// seen it: if so, it may have put another one there since, of its next turn around the ring. Where they are the same, nothing
    /// was, or not all that says so had been written.
    pub(super) fn recover_packed(
        &mut self,
        begin: Position,
        ring: u16,
        is_available: impl Fn(Position) -> bool,
    ) -> Result<PackedRecovered, RingError> {
        if self.load(VERSION) == 0 {
            self.format_packed(begin);
        }
        self.was_used()?;
        let (now, before) = (self.position(false, ring)?, self.position(true, ring)?);
        let committed = now != before && !is_available(before);
        let used = if committed { now } else { before };
        let field = if committed { packed::FREE_HEAD } else { packed::OLD_FREE_HEAD };
        let free_head = self.load(field);
        let mut left = self.left_of_packed(free_head)?;
        left.sort_unstable_by_key(|left| std::cmp::Reverse(left.counter));
        self.known.counter = left.first().map_or(0, |left| left.counter.wrapping_add(1));
        self.store_heads(free_head);
        fence(Ordering::Release);
        self.store_positions(used, used);
        self.known.used = used;
        Ok(PackedRecovered { used, left })
    }

    /// A list of all entries, which are free.
    fn format_packed(&self, begin: Position) {
        for number in 0..self.known.size {
            self.store(self.entry(number) + packed::NEXT, number + 1);
        }
        self.store_heads(0);
        self.store_positions(begin, begin);
        fence(Ordering::Release);
    }

    /// A place in the ring, which may have fewer descriptors than there are entries.
    fn position(&self, before: bool, ring: u16) -> Result<Position, RingError> {
        let (index, wrap) = if before {
            (packed::OLD_USED_INDEX, packed::OLD_USED_WRAP)
        } else {
            (packed::USED_INDEX, packed::USED_WRAP)
        };
        Ok(Position { index: self.index(index, "the used index", ring)?, wrap: self.load_byte(wrap) != 0 })
    }

    /// Both by one store: half of it would be a place where the ring never was.
    fn store_positions(&self, now: Position, before: Position) {
        let put = |value: u16, field: usize| u64::from(value) << (8 * (field - packed::POSITIONS));
        let word = put(now.index, packed::USED_INDEX)
            | put(before.index, packed::OLD_USED_INDEX)
            | put(now.wrap.into(), packed::USED_WRAP)
            | put(before.wrap.into(), packed::OLD_USED_WRAP);
        self.area.store_u64(packed::POSITIONS, word, Ordering::Relaxed);
        stored();
    }

    fn store_heads(&self, free: u16) {
        self.store(packed::FREE_HEAD, free);
        self.store(packed::OLD_FREE_HEAD, free);
    }

    /// Chains that are not in the list of free entries, which is taken over.
    fn left_of_packed(&mut self, free_head: u16) -> Result<Vec<PackedLeft>, RingError> {
        let mut is_free = vec![false; usize::from(self.known.size)];
        let mut free = Vec::new();
        let mut at = free_head;
        while at < self.known.size {
            if std::mem::replace(&mut is_free[usize::from(at)], true) {
                return Err(wrong(format!("the list of free entries comes back to {at}")));
            }
            self.write(self.entry(at) + packed::INFLIGHT, &[0]);
            free.push(at);
            at = self.load(self.entry(at) + packed::NEXT);
        }
        free.reverse();
        self.known.free = free;
        let mut left = Vec::new();
        for head in 0..self.known.size {
            if self.load_byte(self.entry(head) + packed::INFLIGHT) != 0 {
                left.push(self.chain_left(head, &mut is_free)?);
            }
        }
        Ok(left)
    }

    fn chain_left(&mut self, head: u16, seen: &mut [bool]) -> Result<PackedLeft, RingError> {
        let count = self.load(self.entry(head) + packed::COUNT);
        let (mut chain, mut descriptors) = (SmallVec::new(), Vec::new());
        let mut at = head;
        for i in 0..count {
            if at >= self.known.size || std::mem::replace(&mut seen[usize::from(at)], true) {
                return Err(wrong(format!("descriptor {i} of the request at {head} is {at}")));
            }
            descriptors.push(self.descriptor(at));
            chain.push(at);
            at = self.load(self.entry(at) + packed::NEXT);
        }
        let Some(last) = descriptors.last() else {
            return Err(wrong(format!("the request at {head} has no descriptors")));
        };
        let head_of = Head::new(last.id, count, head);
        self.known.chains[usize::from(head)] = chain;
        let counter = self.load_counter(self.entry(head) + packed::COUNTER);
        Ok(PackedLeft { head: head_of, descriptors, counter })
    }

    /// A copy of a descriptor: id, flags, length and address.
    fn descriptor(&self, number: u16) -> PackedDescriptor {
        let bytes = self.area.read_16(self.entry(number) + packed::DESCRIPTOR);
        let [id, flags] = [0, 2].map(|at| u16::from_ne_bytes([bytes[at], bytes[at + 1]]));
        let len = u32::from_ne_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
        let (_, address) = bytes.split_last_chunk::<8>().expect("16 bytes");
        PackedDescriptor { address: u64::from_ne_bytes(*address), len, id, flags }
    }

    /// A chain is taken; returns the entry where it is marked.
    pub(super) fn take_packed(&mut self, all: &[PackedDescriptor]) -> Result<u16, RingError> {
        if self.known.free.len() < all.len() {
            return Err(wrong("there is no free entry".into()));
        }
        let mut chain: SmallVec<[u16; 4]> = SmallVec::new();
        for descriptor in all {
            let number = self.known.free.pop().expect("enough");
            let mut bytes = [0; 16];
            bytes[..2].copy_from_slice(&descriptor.id.to_ne_bytes());
            bytes[2..4].copy_from_slice(&descriptor.flags.to_ne_bytes());
            bytes[4..8].copy_from_slice(&descriptor.len.to_ne_bytes());
            bytes[8..].copy_from_slice(&descriptor.address.to_ne_bytes());
            self.write(self.entry(number) + packed::DESCRIPTOR, &bytes);
            chain.push(number);
        }
        let (head, last) = (chain[0], *chain.last().expect("at least one"));
        let entry = self.entry(head);
        self.store(entry + packed::LAST, last);
        self.store(entry + packed::COUNT, u16::try_from(chain.len()).expect("as many as the ring has"));
        self.write(entry + packed::COUNTER, &self.known.counter.to_ne_bytes());
        self.known.counter = self.known.counter.wrapping_add(1);
        fence(Ordering::Release);
        self.write(entry + packed::INFLIGHT, &[1]);
        fence(Ordering::Release);
        // The links between the entries are those of the list of free ones, as they were taken from it.
        self.store_heads(self.known.free.last().copied().unwrap_or(self.known.size));
        fence(Ordering::Release);
        self.known.chains[usize::from(head)] = chain;
        Ok(head)
    }

    /// A chain is about to be used, after which the ring goes on at `next`.
    pub(super) fn complete_packed(&mut self, head: Head, next: Position) {
        let chain = std::mem::take(&mut self.known.chains[usize::from(head.mark())]);
        let last = *chain.last().expect("a chain that is in flight");
        let free_head = self.known.free.last().copied().unwrap_or(self.known.size);
        self.store(self.entry(last) + packed::NEXT, free_head);
        fence(Ordering::Release);
        self.store(packed::FREE_HEAD, head.mark());
        fence(Ordering::Release);
        self.store_positions(next, self.known.used);
        fence(Ordering::Release);
        self.known.used = next;
        self.known.free.extend(chain.into_iter().rev());
    }

    /// The driver sees that it was used.
    pub(super) fn published_packed(&mut self, head: Head) {
        fence(Ordering::Release);
        self.write(self.entry(head.mark()) + packed::INFLIGHT, &[0]);
        fence(Ordering::Release);
        self.store(packed::OLD_FREE_HEAD, head.mark());
        fence(Ordering::Release);
        self.store_positions(self.known.used, self.known.used);
        fence(Ordering::Release);
    }
}

const LAST_OF_BATCH: usize = split::LAST_BATCH_HEAD;

#[cfg(test)]
#[path = "marks_tests.rs"]
mod tests;

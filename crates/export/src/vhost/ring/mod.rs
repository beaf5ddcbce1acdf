//! A virtqueue as the device sees it: which requests there are, and that they are done. Split and packed (`split`,
//! `packed`).
//!
//! The driver is hostile, and changes memory while it is looked at. Invariants:
//!
//! 1. Every index, descriptor and address is loaded once, checked, and used as it was checked.
//! 2. A chain has at most as many descriptors as its ring, and [`INDIRECT_MAX`], in the ring, in an indirect table, or in both (a
//!    split ring's may begin in the ring and end in a table); no more of it is read. Where several chains share descriptors, each counts in each. Of one whose memory is in more than [`PIECES_MAX`] pieces no
//!    more is kept than its beginning and its end.
//! 3. Never are more chains in flight than the ring has descriptors, nor one twice: what a driver can make us keep is bounded.
//! 4. A chain's memory lies in the guest's, and stays alive for the I/O whatever the front end does.
//! 5. After an error the ring is not looked at any more ([`RingError`] says what was wrong); what is in flight is still
//!    answered.

mod near;
mod packed;
mod split;

use std::sync::atomic::Ordering;

use blockwork_format::vhost_user::VringAddr;
use blockwork_format::virtio::{DESCRIPTOR_BYTES, descriptor_flag};
use blockwork_memory::{
    Buffer, GUEST_REGIONS_MAX, GuestLayout, GuestMemory, GuestRange, GuestRanges, NotGuestMemory, Segment,
    Segments, copy_between,
};

use super::marks::{Marks, PackedRecovered, Recovered};
use near::NEAR;
use packed::PackedRing;
pub(crate) use packed::Position;
use split::SplitRing;

/// Descriptors of a chain, in the ring or in an indirect table, at most: the data of a request of 4 MiB in single pages, and its two
/// ends. No driver makes longer ones, as it is told how many pieces of data a request may have.
pub const INDIRECT_MAX: usize = 1026;

/// Pieces of a request's memory, beyond which nothing more is done about it: a front end may share its memory in hundreds of regions as small as
/// it likes, and each descriptor of a chain may reach over all of them. Of a request whose descriptors do not share memory, which no driver
/// has reason for, one for each descriptor, and one more for each region and each GiB that it touches.
pub const PIECES_MAX: usize = 2 * INDIRECT_MAX;

const _: () = assert!(PIECES_MAX > INDIRECT_MAX + GUEST_REGIONS_MAX);

/// Where a packed ring begins that nothing was taken from: both of its positions at its beginning, in the first round.
pub(super) const PACKED_BASE: u32 = 0x8000_8000;

/// What a driver did that no driver may do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RingError {
    /// Part of the ring is not in the guest's memory.
    #[error("its {what} are not in the guest's memory: {source}")]
    Outside {
        /// Which part.
        what: &'static str,
        /// Where it should be.
        source: NotGuestMemory,
    },
    /// Part of the ring is at an odd address.
    #[error("its {what} are at {address:#x}, expected a multiple of {expected}")]
    Misaligned {
        /// Which part.
        what: &'static str,
        /// Where it is.
        address: u64,
        /// What it must be a multiple of.
        expected: u64,
    },
    /// It has no descriptors, too many, or a number that this kind of ring cannot have.
    #[error("it has {0} descriptors, expected a power of two (packed: any number) from 1 to 32768")]
    Size(u32),
    /// The driver's index is further ahead than there is room.
    #[error("the available index is {found}, expected at most {size} after {next}")]
    RunAway {
        /// The driver's index.
        found: u16,
        /// Ours.
        next: u16,
        /// The ring's size.
        size: u16,
    },
    /// A number of a descriptor or of a buffer that does not exist.
    #[error("{what} is {found}, expected less than {size}")]
    Number {
        /// Which number.
        what: &'static str,
        /// What it is.
        found: u16,
        /// The number of descriptors.
        size: usize,
    },
    /// A loop, or a chain that no driver makes.
    #[error("a chain of more than {0} descriptors")]
    Long(usize),
    /// It is in flight already.
    #[error("descriptor {0} was made available a second time before it was used")]
    Twice(u16),
    /// An indirect descriptor where none may be.
    #[error("an indirect descriptor {0}")]
    Indirect(&'static str),
    /// An indirect table that is no table.
    #[error("an indirect table of {0} bytes, expected a multiple of 16, at most 16416")]
    TableLength(u32),
    /// Memory that the device reads after memory that it writes.
    #[error("memory that the device reads follows memory that it writes")]
    Order,
    /// Memory that is not the guest's.
    #[error(transparent)]
    Memory(#[from] NotGuestMemory),
    /// A chain without what every request has.
    #[error("a request of {readable} bytes to read and {writable} to write, expected at least 16 and 1")]
    Short {
        /// Bytes for the device to read.
        readable: usize,
        /// Bytes for it to write.
        writable: usize,
    },
    /// The marks of requests in flight do not fit the ring.
    #[error("the marks of requests in flight: {0}")]
    Marks(String),
    /// What the driver calls us by is no eventfd.
    #[error("its kicks cannot be waited for: {0}")]
    Kick(String),
    /// The front end took the memory away.
    #[error("the file of the guest's memory was cut short")]
    Torn,
}

/// Which chain it is, to the ring that it came from. One word, as it is written and read a moment later: the processor hands on
/// what was written at once, but not what was written in parts, which waits until all writes before it are done.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Head(u64);

impl Head {
    /// `id`, split: its first descriptor; packed: the driver's name for it. `count`: descriptors that it has in the ring. `mark`, packed: the
    /// entry where it is marked as in flight.
    #[inline]
    pub fn new(id: u16, count: u16, mark: u16) -> Head {
        Head(u64::from(id) | u64::from(count) << 16 | u64::from(mark) << 32)
    }

    /// See [`Head::new`].
    #[inline]
    pub fn id(self) -> u16 {
        self.0 as u16 // its lowest 16 bits
    }

    /// See [`Head::new`].
    #[inline]
    pub fn count(self) -> u16 {
        (self.0 >> 16) as u16 // likewise
    }

    /// See [`Head::new`].
    #[inline]
    pub fn mark(self) -> u16 {
        (self.0 >> 32) as u16 // likewise
    }
}

impl std::fmt::Debug for Head {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (id, count, mark) = (self.id(), self.count(), self.mark());
        f.debug_struct("Head").field("id", &id).field("count", &count).field("mark", &mark).finish()
    }
}

/// A request's memory.
#[derive(Debug, Default)]
pub struct Chain {
    /// Which it is.
    pub head: Head,
    /// What the device reads, then what it writes. No range is empty.
    pub pieces: GuestRanges,
    /// How many of these it reads.
    pub readable: usize,
    /// It is in more than [`PIECES_MAX`] pieces: what is here of it is no more than where it begins, and where it ends.
    pub is_scattered: bool,
}

impl Chain {
    /// What the device reads.
    pub fn readable(&self) -> &[GuestRange] {
        &self.pieces[..self.readable]
    }

    /// What it writes.
    pub fn writable(&self) -> &[GuestRange] {
        &self.pieces[self.readable..]
    }

    #[inline(always)]
    fn clear(&mut self) {
        self.pieces.clear();
        (self.readable, self.is_scattered) = (0, false);
    }

    #[inline(always)]
    fn add(&mut self, memory: &GuestMemory, address: u64, len: u32, flags: u16) -> Result<(), RingError> {
        let is_written = flags & descriptor_flag::WRITE != 0;
        if !is_written && self.readable < self.pieces.len() {
            return Err(RingError::Order);
        }
        match memory.range(address, len) {
            Some(whole) => self.pieces.push(whole),
            None => self.add_pieces(memory, address, len)?,
        }
        if !is_written {
            self.readable = self.pieces.len();
        }
        Ok(())
    }

    /// Memory that is not in one piece.
    #[cold]
    fn add_pieces(&mut self, memory: &GuestMemory, address: u64, len: u32) -> Result<(), RingError> {
        if self.pieces.len() < PIECES_MAX || len == 0 {
            return Ok(memory.ranges(address, len, &mut self.pieces)?);
        }
        self.is_scattered = true;
        // Where the status lies, perhaps.
        let end = address.checked_add(u64::from(len) - 1);
        let end = end.ok_or(NotGuestMemory { address, len: len.into() })?;
        Ok(memory.ranges(end, 1, &mut self.pieces)?)
    }
}

/// Where a ring is, and of which kind.
#[derive(Clone, Copy, Debug)]
pub struct RingPlace {
    /// Descriptors.
    pub size: u32,
    /// One ring for both directions.
    pub is_packed: bool,
    /// Each side says when it wants to be told.
    pub event_idx: bool,
    /// Addresses, the front end's.
    pub address: VringAddr,
}

/// What the marks of a ring say.
#[derive(Debug)]
pub enum RecoveredRing {
    /// With a ring for each direction: what was in flight, the latest first.
    Split(Recovered<Vec<u16>>),
    /// With one.
    Packed(Recovered<PackedRecovered>),
}

/// A virtqueue.
#[derive(Debug)]
pub enum Ring {
    /// With a ring for each direction.
    Split(SplitRing),
    /// With one.
    Packed(PackedRing),
}

impl Ring {
    /// Looks through the marks of the ring that is to be at `place`, which begins where `base` says if they are new.
    ///
    /// # Errors
    /// It cannot be there, or the marks do not belong to it.
    pub fn recover(
        layout: &GuestLayout,
        place: &RingPlace,
        base: u32,
        marks: Marks,
    ) -> Result<RecoveredRing, RingError> {
        marks.check_room(place.size)?;
        Ok(if place.is_packed {
            RecoveredRing::Packed(PackedRing::recover(layout, place, base, marks)?)
        } else {
            RecoveredRing::Split(SplitRing::recover(layout, place, marks)?)
        })
    }

    /// The ring at `place`, from where `base` says, or, where marks were looked through, from where those say: see [`Ring::resume`].
    ///
    /// # Errors
    /// It cannot be there, or the marks do not belong to it.
    pub fn new(
        layout: &GuestLayout,
        place: &RingPlace,
        base: u32,
        recovered: Option<RecoveredRing>,
    ) -> Result<Ring, RingError> {
        Ok(match recovered {
            Some(RecoveredRing::Split(left)) => Ring::Split(SplitRing::new(layout, place, base, Some(left))?),
            Some(RecoveredRing::Packed(left)) => {
                Ring::Packed(PackedRing::new(layout, place, base, Some(left))?)
            }
            None if place.is_packed => Ring::Packed(PackedRing::new(layout, place, base, None)?),
            None => Ring::Split(SplitRing::new(layout, place, base, None)?),
        })
    }

    /// The next request that was taken before a restart and not answered, in the order in which they came.
    ///
    /// # Errors
    /// It is no request (any more).
    pub fn resume(&mut self, memory: &GuestMemory, chain: &mut Chain) -> Result<bool, RingError> {
        chain.clear();
        match self {
            Ring::Split(ring) => ring.resume(memory, chain),
            Ring::Packed(ring) => ring.resume(memory, chain),
        }
    }

    /// The next request, if there is one.
    ///
    /// # Errors
    /// It is none. The ring is not to be asked again.
    #[inline]
    pub fn next(&mut self, memory: &GuestMemory, chain: &mut Chain) -> Result<bool, RingError> {
        chain.clear();
        match self {
            Ring::Split(ring) => ring.next(memory, chain),
            Ring::Packed(ring) => ring.next(memory, chain),
        }
    }

    /// Whether the driver has made more available.
    #[inline]
    pub fn has_more(&self) -> bool {
        match self {
            Ring::Split(ring) => ring.has_more(),
            Ring::Packed(ring) => ring.has_more(),
        }
    }

    /// Requests that the driver has made available, as far as that is told without reading them: of a packed ring, half of them at
    /// least.
    #[inline]
    pub fn waiting(&self) -> usize {
        let waiting = match self {
            Ring::Split(ring) => ring.waiting(),
            Ring::Packed(ring) => ring.waiting(),
        };
        waiting.into()
    }

    /// Whether there is no room for another request like the last one.
    pub fn is_full(&self) -> bool {
        match self {
            Ring::Split(ring) => ring.is_full(),
            Ring::Packed(ring) => ring.is_full(),
        }
    }

    /// A request is done, `written` bytes of its memory were written.
    #[inline]
    pub fn complete(&mut self, head: Head, written: u32) {
        match self {
            Ring::Split(ring) => ring.complete(head, written),
            Ring::Packed(ring) => ring.complete(head, written),
        }
    }

    /// Has the processor fetch what is looked at first of the next requests, of 16 at most. Tells of how many.
    #[cold]
    pub fn bring_near(&self, memory: &GuestMemory) -> usize {
        let found = |ends| near::bring_near(memory, ends);
        match self {
            Ring::Split(ring) => ring.ends(memory, NEAR, found),
            Ring::Packed(ring) => ring.ends(memory, NEAR, found),
        }
    }

    /// Lets the driver see what was completed, and tells whether it wants to be called.
    #[inline]
    pub fn publish(&mut self) -> bool {
        match self {
            Ring::Split(ring) => ring.publish(),
            Ring::Packed(ring) => ring.publish(),
        }
    }

    /// Asks the driver to call us for the next request. Tells whether one has come meanwhile, for which it may not call.
    #[inline]
    pub fn enable_calls(&mut self) -> bool {
        match self {
            Ring::Split(ring) => ring.enable_calls(),
            Ring::Packed(ring) => ring.enable_calls(),
        }
    }

    /// Tells the driver that it need not call: we look by ourselves.
    #[inline]
    pub fn disable_calls(&mut self) {
        match self {
            Ring::Split(ring) => ring.disable_calls(),
            Ring::Packed(ring) => ring.disable_calls(),
        }
    }

    /// The word that changes when there is a next request: its place, and what it is until then.
    pub fn tell_tale(&self) -> (&Buffer, usize, u16) {
        match self {
            Ring::Split(ring) => ring.tell_tale(),
            Ring::Packed(ring) => ring.tell_tale(),
        }
    }

    /// Where to go on, when nothing is in flight: as the protocol's GET_VRING_BASE says it.
    pub fn base(&self) -> u32 {
        match self {
            Ring::Split(ring) => ring.base(),
            Ring::Packed(ring) => ring.base(),
        }
    }
}

/// Part of a ring, as a buffer.
fn area(
    layout: &GuestLayout,
    what: &'static str,
    address: u64,
    bytes: usize,
    alignment: u64,
) -> Result<Buffer, RingError> {
    let place = layout.place(address, bytes as u64).map_err(|source| RingError::Outside { what, source })?;
    // The mapping begins at a page, so its offset tells.
    if !address.is_multiple_of(alignment) || !(place.offset as u64).is_multiple_of(alignment) {
        return Err(RingError::Misaligned { what, address, expected: alignment });
    }
    Ok(Buffer::of_mapping(&place.mapping, place.offset, bytes))
}

/// An indirect table.
enum Table<'a> {
    /// It is in one piece, which begins at that place.
    Whole(&'a Buffer, usize),
    /// It reaches over the edge of two regions of memory.
    Copied(Buffer),
}

impl<'a> Table<'a> {
    /// The table at that address, and how many descriptors it has.
    #[inline(always)]
    fn new(memory: &'a GuestMemory, address: u64, len: u32) -> Result<(Table<'a>, usize), RingError> {
        let bytes = len as usize;
        let count = bytes / DESCRIPTOR_BYTES;
        if !bytes.is_multiple_of(DESCRIPTOR_BYTES) || count == 0 || count > INDIRECT_MAX {
            return Err(RingError::TableLength(len));
        }
        let table = match memory.range(address, len) {
            Some(whole) => {
                let (buffer, at) = memory.place(whole);
                Table::Whole(buffer, at)
            }
            None => Table::copied(memory, address, len)?,
        };
        Ok((table, count))
    }

    #[cold]
    fn copied(memory: &GuestMemory, address: u64, len: u32) -> Result<Table<'static>, RingError> {
        let mut ranges = GuestRanges::new();
        memory.ranges(address, len, &mut ranges)?;
        let pieces: Segments = ranges.into_iter().map(|range| memory.segment(range)).collect();
        let copy = Buffer::new(len as usize);
        copy_between(&pieces, &[Segment::new(copy.clone(), 0, len as usize)]);
        Ok(Table::Copied(copy))
    }

    /// Its descriptor number `i`, of which there must be so many.
    #[inline]
    fn descriptor(&self, i: usize) -> [u8; DESCRIPTOR_BYTES] {
        match self {
            Table::Whole(buffer, at) => buffer.read_16(at + i * DESCRIPTOR_BYTES),
            Table::Copied(copy) => copy.read_16(i * DESCRIPTOR_BYTES),
        }
    }
}

/// Descriptor number `i` of a ring.
#[inline]
fn descriptor(ring: &Buffer, i: usize) -> [u8; DESCRIPTOR_BYTES] {
    ring.read_16(i * DESCRIPTOR_BYTES)
}

/// Between what the other side must see in this order; also before the loads that follow.
#[inline]
fn full_fence() {
    std::sync::atomic::fence(Ordering::SeqCst);
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use blockwork_format::virtio::{Descriptor, PackedDescriptor, split};
    use blockwork_memory::{GuestRegion, Mapping};

    use super::*;

    const SIZE: u16 = 64;
    /// The guest's memory, and in it the available and the used ring.
    const MEMORY: u64 = 1 << 20;
    const AVAILABLE: u16 = 0x800;
    const USED: u16 = 0xc00;

    /// A guest's memory, and as it sees that itself.
    fn guest() -> (GuestLayout, Buffer) {
        let file = tempfile::tempfile().unwrap();
        file.set_len(0x1000).unwrap();
        let mapping = Mapping::new(file.as_fd(), 0x1000).unwrap();
        let memory = Buffer::of_mapping(&mapping, 0, 0x1000);
        let region = GuestRegion { guest: MEMORY, user: MEMORY, len: 0x1000, mapping, offset: 0 };
        (GuestLayout::new(vec![region]).unwrap(), memory)
    }

    /// Its ring, which is taken from and was used up to `base`.
    fn ring(layout: &GuestLayout, is_packed: bool, base: u16) -> Ring {
        let (available, used) = (MEMORY + u64::from(AVAILABLE), MEMORY + u64::from(USED));
        let address = VringAddr { index: 0, flags: 0, descriptors: MEMORY, used, available, log: 0 };
        let place = RingPlace { size: SIZE.into(), is_packed, event_idx: true, address };
        let position = u32::from((base % SIZE) | (1 << 15));
        let base = if is_packed { (position << 16) | position } else { base.into() };
        Ring::new(layout, &place, base, None).unwrap()
    }

    /// A ring of which everything up to `base` was used, and so many requests more are available.
    fn ring_where_wait(is_packed: bool, base: u16, requests: u16) -> Ring {
        let (layout, memory) = guest();
        if !is_packed {
            let index = usize::from(AVAILABLE) + split::INDEX;
            memory.store_u16(index, base.wrapping_add(requests), Ordering::Relaxed);
            return ring(&layout, is_packed, base);
        }
        for nth in (base % SIZE..).take(requests.into()) {
            // The driver's mark is the other one where it has gone round.
            let flags = if nth < SIZE { descriptor_flag::AVAIL } else { descriptor_flag::USED };
            let at = usize::from(nth % SIZE) * DESCRIPTOR_BYTES + DESCRIPTOR_BYTES - 2;
            memory.store_u16(at, flags, Ordering::Relaxed);
        }
        ring(&layout, is_packed, base)
    }

    /// A ring of that size, with its memory, in which one chain of so many descriptors is available.
    fn ring_with_chain(is_packed: bool, size: u16, descriptors: u16) -> (Ring, GuestMemory) {
        let parts = [0, DESCRIPTOR_BYTES * usize::from(size), split::avail_bytes(size).next_multiple_of(16)];
        let [table, available, used] = [parts[0], parts[1], parts[1] + parts[2]];
        let bytes = used + split::used_bytes(size).next_multiple_of(4096);
        let file = tempfile::tempfile().unwrap();
        file.set_len(bytes as u64).unwrap();
        let mapping = Mapping::new(file.as_fd(), bytes as u64).unwrap();
        let memory = Buffer::of_mapping(&mapping, 0, bytes);
        let region = GuestRegion { guest: MEMORY, user: MEMORY, len: bytes as u64, mapping, offset: 0 };
        let layout = GuestLayout::new(vec![region]).unwrap();
        for i in 0..descriptors {
            let next = if i + 1 < descriptors { descriptor_flag::NEXT } else { 0 };
            let flags = if is_packed { next | descriptor_flag::AVAIL } else { next };
            // Every other byte: neighbours might be one piece.
            let address = MEMORY + 2 * u64::from(i) % 4096;
            let bytes = if is_packed {
                PackedDescriptor { address, len: 1, id: 0, flags }.encode()
            } else {
                Descriptor { address, len: 1, flags, next: i + 1 }.encode()
            };
            memory.write_at(table + DESCRIPTOR_BYTES * usize::from(i), &bytes);
        }
        memory.store_u16(available + split::INDEX, if is_packed { 0 } else { 1 }, Ordering::Relaxed);
        let [available, used] = [available, used].map(|at| MEMORY + at as u64);
        let address = VringAddr { index: 0, flags: 0, descriptors: MEMORY, used, available, log: 0 };
        let place = RingPlace { size: size.into(), is_packed, event_idx: false, address };
        let base = if is_packed { PACKED_BASE } else { 0 };
        (Ring::new(&layout, &place, base, None).unwrap(), GuestMemory::new(&layout))
    }

    #[test]
    fn a_chain_in_the_ring_may_be_as_long_as_one_in_a_table_and_no_longer() {
        let longest = u16::try_from(INDIRECT_MAX).unwrap();
        for (is_packed, size) in [(false, 2048), (true, 2048), (true, 1500), (false, 32768)] {
            let mut chain = Chain::default();
            let (mut ring, memory) = ring_with_chain(is_packed, size, longest);
            assert_eq!(ring.next(&memory, &mut chain), Ok(true), "packed: {is_packed}");
            assert_eq!(chain.readable().len(), INDIRECT_MAX);
            for longer in [longest + 1, size] {
                let (mut ring, memory) = ring_with_chain(is_packed, size, longer);
                assert_eq!(ring.next(&memory, &mut chain), Err(RingError::Long(INDIRECT_MAX)));
            }
        }
    }

    #[test]
    fn a_chain_of_a_split_ring_may_end_in_a_table() {
        let flag = |flags, nth, of| if nth + 1 < of { flags | descriptor_flag::NEXT } else { flags };
        // Descriptors in the ring before the table's, those in the table, flags of the table's, and what comes of it.
        let longest = u16::try_from(INDIRECT_MAX).unwrap();
        let goes_on = descriptor_flag::NEXT;
        let cases = [
            (1, 1, 0, None),
            (1, 3, 0, None),
            (5, 2, descriptor_flag::WRITE, None),
            (longest - 1, 1, 0, None),
            (longest - 1, 2, 0, Some(RingError::Long(INDIRECT_MAX))),
            (4, longest - 3, 0, Some(RingError::Long(INDIRECT_MAX))),
            (longest, 1, 0, Some(RingError::Long(INDIRECT_MAX))),
            (1, 1, goes_on, Some(RingError::Indirect("that goes on"))),
        ];
        for (direct, in_table, flags, error) in cases {
            let (mut ring, memory) = ring_with_chain(false, 2048, direct + 1);
            let write = |address, descriptor: Descriptor| {
                let range = memory.range(address, 16).expect("it is the guest's");
                memory.segment(range).write_at(0, &descriptor.encode());
            };
            let place = |nth: u16| MEMORY + (DESCRIPTOR_BYTES as u64) * u64::from(nth);
            // Where the ring does not need its descriptors, there is room for it.
            let table = place(direct + 1).next_multiple_of(32);
            for nth in 0..in_table {
                let address = MEMORY + 8192 + 2 * u64::from(nth);
                let next = nth + 1;
                write(
                    table + 16 * u64::from(nth),
                    Descriptor { address, len: 1, flags: flag(0, nth, in_table), next },
                );
            }
            let (len, flags) = (u32::from(in_table) * 16, flags | descriptor_flag::INDIRECT);
            write(place(direct), Descriptor { address: table, len, flags, next: 0 });
            let mut chain = Chain::default();
            let found = ring.next(&memory, &mut chain);
            assert_eq!(found, error.map_or(Ok(true), Err), "{direct} and {in_table}");
            if found.is_ok() {
                assert_eq!(chain.readable().len(), usize::from(direct + in_table));
                let last = memory.address(*chain.readable().last().unwrap());
                assert_eq!(last, MEMORY + 8192 + 2 * u64::from(in_table - 1));
                assert_eq!(chain.head.count(), direct + 1, "what it has in the ring");
            }
        }
    }

    #[test]
    fn what_waits_in_the_largest_ring_is_counted() {
        let (ring, _) = ring_with_chain(true, 32768, 32768);
        assert_eq!(ring.waiting(), 32768);
        let (ring, _) = ring_with_chain(true, 32768, 32767);
        assert_eq!(ring.waiting(), 16384);
    }

    #[test]
    fn what_waits_is_known_before_it_is_taken() {
        for (base, requests) in [0, 5, 60].into_iter().flat_map(|base| (0..=SIZE).map(move |n| (base, n))) {
            let exactly = usize::from(requests);
            assert_eq!(ring_where_wait(false, base, requests).waiting(), exactly, "from {base}");
            assert_eq!(
                ring_where_wait(false, base.wrapping_sub(60), requests).waiting(),
                exactly,
                "from {base}"
            );
            let about = ring_where_wait(true, base, requests).waiting();
            assert!((exactly.div_ceil(2)..=exactly).contains(&about), "{about} of {requests} from {base}");
            assert!(about == exactly || !exactly.is_power_of_two(), "{about} of {requests} from {base}");
        }
    }

    /// Requests in a ring of `guest`'s, from its end on: one of three descriptors, one of a table at `0x400`, one of a table that is not there, one of a
    /// single descriptor, one of four, another single one.
    fn ring_of_all_kinds(layout: &GuestLayout, memory: &Buffer, is_packed: bool) -> Ring {
        let put = |at: usize, address: u64, len: u32, flags: u16, next: u16| {
            let marked =
                if at == usize::from(SIZE - 1) { descriptor_flag::AVAIL } else { descriptor_flag::USED };
            let bytes = if is_packed && at < usize::from(SIZE) {
                PackedDescriptor { address, len, id: 0, flags: flags | marked }.encode()
            } else {
                Descriptor { address, len, flags, next }.encode()
            };
            memory.write_at(at * DESCRIPTOR_BYTES, &bytes);
        };
        let (next, indirect) = (descriptor_flag::NEXT, descriptor_flag::INDIRECT);
        put(63, MEMORY + 0x100, 16, next, 0);
        put(0, MEMORY + 0x200, 64, next, 1);
        put(1, MEMORY + 0x300, 1, 0, 0);
        put(2, MEMORY + 0x400, 64, indirect, 0);
        [0xf00, 0xf10, 0xf20, 0xf30]
            .into_iter()
            .zip(64..)
            .for_each(|(to, at)| put(at, MEMORY + to, 9, next, 1));
        put(3, 0x400, 64, indirect, 0);
        put(4, MEMORY + 0xfff, 1, 0, 0);
        [5, 6, 7].into_iter().for_each(|at| put(at, MEMORY + 0x100 * at as u64, 1, next, at as u16 + 1));
        put(8, MEMORY + 0x800, 1, 0, 0);
        put(9, MEMORY + 0x900, 1, 0, 0);
        if is_packed {
            return ring(layout, true, SIZE - 1);
        }
        for (nth, head) in [63, 2, 3, 4, 5, 9].into_iter().enumerate() {
            let index = (usize::from(SIZE) - 1 + nth) % usize::from(SIZE);
            memory.store_u16(usize::from(AVAILABLE) + split::ENTRIES + 2 * index, head, Ordering::Relaxed);
        }
        memory.store_u16(usize::from(AVAILABLE) + split::INDEX, 5, Ordering::Relaxed);
        ring(layout, false, u16::MAX)
    }

    #[test]
    fn what_is_looked_at_first_is_found_however_requests_are_described() {
        for is_packed in [false, true] {
            let (layout, memory) = guest();
            let view = GuestMemory::new(&layout);
            let ring = ring_of_all_kinds(&layout, &memory, is_packed);
            let found = |most| {
                let mut found = Vec::new();
                let add = |ends: near::Ends| found.push(ends.map(|address| address - MEMORY));
                let count = match &ring {
                    Ring::Split(ring) => ring.ends(&view, most, add),
                    Ring::Packed(ring) => ring.ends(&view, most, add),
                };
                found.sort_unstable();
                (count, found)
            };
            let three = [[0x100, 0x300], [0xf00, 0xf30], [0xfff, 0xfff]];
            assert_eq!(found(4), (4, three.to_vec()), "packed: {is_packed}");
            assert_eq!(found(2), (2, three[..2].to_vec()), "packed: {is_packed}");
            assert_eq!(found(1), (1, three[..1].to_vec()), "packed: {is_packed}");
            let (long, last) = ([0x500, 0x700], [0x900, 0x900]);
            let (count, all) = found(usize::MAX);
            assert!(all.contains(&long), "packed: {is_packed}, {all:x?}");
            // Behind that one, a packed ring's next is not known yet.
            assert_eq!((count, all.contains(&last)), if is_packed { (5, false) } else { (6, true) });
            assert_eq!(ring.bring_near(&view), count);
        }
    }
}

//! A guest's memory: files that a front end shares, each at a range of the guest's physical addresses, and (for what the
//! front end itself points to) of its own.
//!
//! [`GuestLayout`] is what all workers share; [`GuestMemory`] is one worker's view of it, that looks addresses up
//! ([`GuestRange`]), and makes [`Segment`]s of what goes to the kernel as it is. What is only read or written here, such as a
//! descriptor, needs no reference of its own to the memory: the view keeps that.
//!
//! Invariants:
//! 1. Regions of a layout do not overlap, in either kind of address, and none wraps around.
//! 2. What an address becomes lies in the layout's mappings, which it keeps alive: memory that a front end takes away is
//!    still there for the I/O under way.

use std::cell::Cell;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::buffer::Buffer;
use crate::mapping::{MAPPED_BYTES_MAX, Mapping, Place};
use crate::segment::Segment;

/// Regions of a guest's memory, at most: what QEMU uses at its largest.
pub const GUEST_REGIONS_MAX: usize = 509;

/// Bytes that are mapped for them, at most: a third of what a process may have mapped. No guest is as large.
pub const GUEST_BYTES_MAX: u64 = MAPPED_BYTES_MAX / 3;

/// Part of a region that is one buffer: a segment's offset has 32 bits.
const WINDOW: usize = 1 << 30;

/// A range of a guest's memory.
#[derive(Clone, Debug)]
pub struct GuestRegion {
    /// Where the guest sees it.
    pub guest: u64,
    /// Where the front end sees it.
    pub user: u64,
    /// Bytes.
    pub len: u64,
    /// The memory.
    pub mapping: Arc<Mapping>,
    /// Where it begins there, bytes.
    pub offset: u64,
}

/// Why regions are no layout.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// Too many.
    #[error("{0} regions of memory, expected at most {GUEST_REGIONS_MAX}")]
    TooMany(usize),
    /// Too large.
    #[error("regions of memory of {0} bytes in all, expected at most {GUEST_BYTES_MAX}")]
    TooLarge(u64),
    /// Empty, wraps around, or does not lie in its mapping.
    #[error("a region of {len} bytes at guest address {guest:#x} does not fit its file or the address space")]
    Outside {
        /// Its address.
        guest: u64,
        /// Its size.
        len: u64,
    },
    /// Two share addresses.
    #[error("two regions of memory overlap at guest address {guest:#x}")]
    Overlap {
        /// The second one's address.
        guest: u64,
    },
}

/// An address that is not the guest's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{len} bytes at address {address:#x} are not in the guest's memory")]
pub struct NotGuestMemory {
    /// The address.
    pub address: u64,
    /// How much was meant.
    pub len: u64,
}

/// All of a guest's memory. Cloning shares it.
#[derive(Clone, Debug, Default)]
pub struct GuestLayout {
    /// By guest address.
    regions: Arc<[GuestRegion]>,
}

impl GuestLayout {
    /// A layout of these regions, in any order.
    ///
    /// # Errors
    /// See [`LayoutError`].
    pub fn new(mut regions: Vec<GuestRegion>) -> Result<GuestLayout, LayoutError> {
        if regions.len() > GUEST_REGIONS_MAX {
            return Err(LayoutError::TooMany(regions.len()));
        }
        let bytes = regions.iter().fold(0_u64, |all, region| all.saturating_add(region.mapping.len() as u64));
        if bytes > GUEST_BYTES_MAX {
            return Err(LayoutError::TooLarge(bytes));
        }
        for region in &regions {
            let GuestRegion { guest, user, len, ref mapping, offset } = *region;
            let fits = |start: u64| start.checked_add(len).is_some();
            let inside = offset.checked_add(len).is_some_and(|end| end <= mapping.len() as u64);
            if len == 0 || !fits(guest) || !fits(user) || !inside {
                return Err(LayoutError::Outside { guest, len });
            }
        }
        for address in [|region: &GuestRegion| region.user, |region: &GuestRegion| region.guest] {
            regions.sort_by_key(address);
            let overlap = regions.windows(2).find(|pair| address(&pair[0]) + pair[0].len > address(&pair[1]));
            if let Some(pair) = overlap {
                return Err(LayoutError::Overlap { guest: pair[1].guest });
            }
        }
        Ok(GuestLayout { regions: regions.into() })
    }

    /// Its regions, by guest address.
    pub fn regions(&self) -> &[GuestRegion] {
        &self.regions
    }

    /// What lies at an address of the front end's, in one piece.
    ///
    /// # Errors
    /// It is not in one region.
    pub fn place(&self, user: u64, len: u64) -> Result<Place, NotGuestMemory> {
        let refused = NotGuestMemory { address: user, len };
        let region = self.regions.iter().find(|region| user.wrapping_sub(region.user) < region.len);
        let region = region.ok_or(refused)?;
        let at = user - region.user;
        if len > region.len - at {
            return Err(refused);
        }
        let offset = usize::try_from(region.offset + at).map_err(|_| refused)?;
        Ok(Place { mapping: region.mapping.clone(), offset })
    }

    /// The guest's address of an address of the front end's; none where nothing of the guest's is.
    pub fn guest_address(&self, user: u64) -> Option<u64> {
        let region = self.regions.iter().find(|region| user.wrapping_sub(region.user) < region.len)?;
        Some(region.guest + (user - region.user))
    }

    /// One past the guest's last address.
    pub fn end(&self) -> u64 {
        self.regions.iter().map(|region| region.guest + region.len).max().unwrap_or(0)
    }

    /// Whether any file of it was cut short.
    pub fn is_torn(&self) -> bool {
        self.regions.iter().any(|region| region.mapping.is_torn())
    }
}

/// Bytes of a guest's memory in one piece, looked up and checked. Costs nothing to copy; means something to the view that gave it
/// only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuestRange {
    /// The number of a window, and the offset there in the lower half. In one word, as is the length, since a list of ranges is read a word at a
    /// time, just after it was written: the processor hands on what was written at once, but not what was written in parts, which waits
    /// until all writes before it are done. With a length of half a word, a driver that looks by itself, far away, has 3 % fewer requests
    /// done with 16 and 64 under way.
    place: u64,
    /// Bytes, less than 2^32.
    len: u64,
}

/// A list of them: header, data and status of most requests fit without an allocation.
pub type GuestRanges = SmallVec<[GuestRange; 4]>;

impl GuestRange {
    /// Of a window's number, an offset there, and bytes, all less than 2^32.
    #[inline]
    fn new(window: usize, offset: u64, len: u32) -> GuestRange {
        GuestRange { place: (window as u64) << 32 | offset, len: len.into() }
    }

    #[inline]
    fn window(self) -> usize {
        (self.place >> 32) as usize
    }

    #[inline]
    fn offset(self) -> usize {
        self.place as u32 as usize // the lower half
    }

    /// Bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether it holds no byte.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The part of `len` bytes at `at`.
    ///
    /// # Panics
    /// If it lies outside.
    #[inline]
    pub fn slice(&self, at: usize, len: usize) -> GuestRange {
        assert!(at.checked_add(len).is_some_and(|end| end <= self.len()));
        // Both are at most `self.len`, and a window ends below 2^32.
        GuestRange { place: self.place + at as u64, len: len as u64 }
    }
}

/// One worker's view of a guest's memory.
#[derive(Debug)]
pub struct GuestMemory {
    windows: Vec<Window>,
    /// The one that was used last: most of what a guest asks for lies in one region.
    last: Cell<usize>,
}

/// Part of a region, as a buffer.
#[derive(Debug)]
struct Window {
    guest: u64,
    len: u64,
    buffer: Buffer,
}

impl GuestMemory {
    /// A view of `layout`.
    pub fn new(layout: &GuestLayout) -> GuestMemory {
        let mut windows = Vec::new();
        for region in layout.regions() {
            let (mut guest, mut offset) = (region.guest, region.offset);
            let mut left = region.len;
            while left > 0 {
                let len = left.min(WINDOW as u64);
                let (from, bytes) = (usize::try_from(offset), usize::try_from(len));
                let (from, bytes) = (from.expect("it is mapped"), bytes.expect("at most a window"));
                windows.push(Window { guest, len, buffer: Buffer::of_mapping(&region.mapping, from, bytes) });
                guest = guest.wrapping_add(len);
                offset += len;
                left -= len;
            }
        }
        GuestMemory { windows, last: Cell::new(0) }
    }

    /// The `len` bytes at a guest's address in one piece; none where they are not, or where there are none.
    #[inline(always)]
    pub fn range(&self, address: u64, len: u32) -> Option<GuestRange> {
        let (number, window) = self.find(address)?;
        let at = address - window.guest;
        // It is less than a window; and there are fewer windows than pages in an address space.
        let range = GuestRange::new(number, at, len);
        (len > 0 && u64::from(len) <= window.len - at).then_some(range)
    }

    /// Appends the `len` bytes at a guest's address to `out`: one range, but where they reach over the end of a region or
    /// of one of its windows of 1 GiB.
    ///
    /// # Errors
    /// Some of it is not the guest's; then `out` may have been added to.
    #[inline(always)]
    pub fn ranges(&self, address: u64, len: u32, out: &mut GuestRanges) -> Result<(), NotGuestMemory> {
        match self.range(address, len) {
            Some(whole) => out.push(whole),
            None => self.pieces(address, len, out)?,
        }
        Ok(())
    }

    #[cold]
    fn pieces(&self, address: u64, len: u32, out: &mut GuestRanges) -> Result<(), NotGuestMemory> {
        let (mut address, mut left) = (address, u64::from(len));
        while left > 0 {
            let (number, window) = self.find(address).ok_or(NotGuestMemory { address, len: left })?;
            let at = address - window.guest;
            let take = left.min(window.len - at);
            // All of these are less than a window, or a number of one.
            out.push(GuestRange::new(number, at, take as u32));
            left -= take;
            address = address.wrapping_add(take);
        }
        Ok(())
    }

    #[inline]
    fn buffer(&self, range: GuestRange) -> &Buffer {
        &self.windows[range.window()].buffer
    }

    /// The memory of a range, for I/O.
    #[inline]
    pub fn segment(&self, range: GuestRange) -> Segment {
        Segment::new(self.buffer(range).clone(), range.offset(), range.len())
    }

    /// Copies out the 16 bytes at `at` of a range, as [`Buffer::read_16`] does.
    ///
    /// # Panics
    /// If they lie outside.
    #[inline]
    pub fn read_16(&self, range: GuestRange, at: usize) -> [u8; 16] {
        assert!(at.checked_add(16).is_some_and(|end| end <= range.len()));
        self.buffer(range).read_16(range.offset() + at)
    }

    /// Where a range lies: a buffer that holds it, and its place there.
    #[inline]
    pub fn place(&self, range: GuestRange) -> (&Buffer, usize) {
        (self.buffer(range), range.offset())
    }

    /// Copies `bytes` to the beginning of a range.
    ///
    /// # Panics
    /// If it is shorter.
    #[inline]
    pub fn write(&self, range: GuestRange, bytes: &[u8]) {
        assert!(bytes.len() <= range.len());
        self.buffer(range).write_at(range.offset(), bytes);
    }

    /// Has the processor fetch the beginning of a range, as [`Buffer::bring_near`] does.
    #[inline]
    pub fn bring_near(&self, range: GuestRange, to_write: bool) {
        self.buffer(range).bring_near(range.offset(), to_write);
    }

    /// The guest's address of a range.
    pub fn address(&self, range: GuestRange) -> u64 {
        self.windows[range.window()].guest + range.offset() as u64
    }

    /// The guest's address of a segment of its memory; none of one that is not.
    pub fn address_of(&self, segment: &Segment) -> Option<u64> {
        let window = self.windows.iter().find(|window| window.buffer.same(segment.buffer()))?;
        Some(window.guest + segment.offset() as u64)
    }

    #[inline(always)]
    fn find(&self, address: u64) -> Option<(usize, &Window)> {
        let last = self.last.get();
        match self.windows.get(last) {
            Some(window) if window.holds(address) => Some((last, window)),
            _ => self.find_other(address),
        }
    }

    #[cold]
    fn find_other(&self, address: u64) -> Option<(usize, &Window)> {
        let next = self.windows.partition_point(|window| window.guest <= address);
        let number = next.checked_sub(1)?;
        let window = &self.windows[number];
        window.holds(address).then(|| {
            self.last.set(number);
            (number, window)
        })
    }
}

impl Window {
    #[inline]
    fn holds(&self, address: u64) -> bool {
        address.wrapping_sub(self.guest) < self.len
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;

    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    use super::*;

    fn memory(len: u64) -> (File, Arc<Mapping>) {
        let file = File::from(memfd_create("test", MemfdFlags::CLOEXEC).unwrap());
        ftruncate(&file, len).unwrap();
        let mapping = Mapping::new(file.as_fd(), len).unwrap();
        (file, mapping)
    }

    #[test]
    fn guests_with_all_their_regions_leave_room_for_others() {
        let file = File::from(memfd_create("test", MemfdFlags::CLOEXEC).unwrap());
        ftruncate(&file, 0x1000).unwrap();
        let many = (0..12 * GUEST_REGIONS_MAX).map(|_| Mapping::new(file.as_fd(), 0x1000));
        assert!(many.collect::<Result<Vec<_>, _>>().is_ok());
    }

    fn region(mapping: &Arc<Mapping>, guest: u64, user: u64, offset: u64, len: u64) -> GuestRegion {
        GuestRegion { guest, user, len, mapping: mapping.clone(), offset }
    }

    #[test]
    fn what_the_guest_wrote_is_read_at_its_address_over_the_edge_of_regions() {
        let (_file, mapping) = memory(0x4000);
        let file = Buffer::of_mapping(&mapping, 0, 0x4000);
        file.write_at(0x1ffe, b"ab");
        file.write_at(0x3000, b"cd");
        // 0x10000..0x11000 lies at 0x1000 of the file, and what follows it at 0x3000.
        let regions = vec![
            region(&mapping, 0x11000, 0x9000, 0x3000, 0x1000),
            region(&mapping, 0x10000, 0x5000, 0x1000, 0x1000),
        ];
        let layout = GuestLayout::new(regions).unwrap();
        let guest = GuestMemory::new(&layout);
        let mut out = GuestRanges::new();
        guest.ranges(0x10ffe, 4, &mut out).unwrap();
        let mut bytes = Vec::new();
        for range in &out {
            let segment = guest.segment(*range);
            let mut part = vec![0; segment.len()];
            segment.read_at(0, &mut part);
            bytes.extend(part);
            assert_eq!(guest.address_of(&segment), Some(guest.address(*range)));
        }
        assert_eq!(bytes, b"abcd");
        assert_eq!(out.iter().map(|range| guest.address(*range)).collect::<Vec<_>>(), [0x10ffe, 0x11000]);
        guest.write(out[1].slice(1, 1), b"x");
        assert_eq!(&guest.read_16(guest.range(0x11000, 17).unwrap(), 1)[..1], b"x");
        let place = layout.place(0x5ffe, 2).unwrap();
        let mut bytes = [0; 2];
        Buffer::of_mapping(&place.mapping, place.offset, 2).read_at(0, &mut bytes);
        assert_eq!(&bytes, b"ab");
        assert!(layout.place(0x5ffe, 3).is_err());
        for (address, len) in [(0x12000, 1), (0x11fff, 2), (0xffff, 1), (u64::MAX, 2), (0x10000, u32::MAX)] {
            assert!(guest.ranges(address, len, &mut GuestRanges::new()).is_err(), "{len} at {address:#x}");
            assert_eq!(guest.range(address, len), None);
        }
    }

    #[test]
    fn regions_that_overlap_or_do_not_fit_are_refused() {
        let (_file, mapping) = memory(0x2000);
        let layout = |regions: &[(u64, u64, u64, u64)]| {
            GuestLayout::new(regions.iter().map(|&(g, u, o, l)| region(&mapping, g, u, o, l)).collect())
        };
        assert!(layout(&[(0, 0, 0, 0x1000), (0x1000, 0x1000, 0x1000, 0x1000)]).is_ok());
        assert_eq!(
            layout(&[(0, 0, 0, 0x1001), (0x1000, 0x8000, 0, 1)]).unwrap_err(),
            LayoutError::Overlap { guest: 0x1000 }
        );
        assert_eq!(
            layout(&[(0, 0, 0, 0x1001), (0x8000, 0x1000, 0, 1)]).unwrap_err(),
            LayoutError::Overlap { guest: 0x8000 }
        );
        for bad in
            [(0, 0, 0, 0), (0, 0, 1, 0x2000), (u64::MAX, 0, 0, 2), (0, u64::MAX, 0, 2), (0, 0, u64::MAX, 1)]
        {
            assert!(matches!(layout(&[bad]), Err(LayoutError::Outside { .. })), "{bad:?}");
        }
    }

    #[test]
    fn a_file_that_is_cut_short_becomes_zeros_and_says_so() {
        let (file, mapping) = memory(0x4000);
        let buffer = Buffer::of_mapping(&mapping, 0, 0x4000);
        buffer.write_at(0x3000, b"here");
        let layout = GuestLayout::new(vec![region(&mapping, 0, 0, 0, 0x4000)]).unwrap();
        assert!(!layout.is_torn());
        ftruncate(&file, 0x1000).unwrap();
        assert_eq!(buffer.load_u16(0x3000, std::sync::atomic::Ordering::Acquire), 0);
        assert!(layout.is_torn());
        buffer.write_at(0, b"still memory");
        drop((layout, buffer, mapping));
        let (_file, next) = memory(0x1000);
        assert!(!next.is_torn());
    }

    #[test]
    fn all_mappings_together_leave_the_process_some_of_its_addresses() {
        const TIB: u64 = 1 << 40;
        let file = File::from(memfd_create("holes", MemfdFlags::CLOEXEC).unwrap());
        ftruncate(&file, 100 * TIB).unwrap();
        let map = |bytes| Mapping::new(file.as_fd(), bytes);
        let region = |mapping: &Arc<Mapping>| GuestRegion {
            guest: 0,
            user: 0,
            len: TIB,
            mapping: mapping.clone(),
            offset: 0,
        };
        let all = [30, 30, 33].map(|tib| map(tib * TIB).unwrap());
        assert!(GuestLayout::new(vec![region(&all[0])]).is_ok());
        let error = GuestLayout::new(vec![region(&all[2])]).unwrap_err();
        assert_eq!(error, LayoutError::TooLarge(33 * TIB));
        let error = map(4 * TIB).unwrap_err().to_string();
        assert!(error.contains("4398046511104 bytes more cannot be mapped"), "{error}");
        drop(all);
        map(4 * TIB).unwrap();
    }

    #[test]
    fn of_a_file_the_pages_of_a_part_are_mapped_and_no_more() {
        let (file, whole) = memory(0x5000);
        let whole = Buffer::of_mapping(&whole, 0, 0x5000);
        whole.write_at(0x1ffe, b"here");
        let Place { mapping, offset } = Mapping::of_memory(file.as_fd(), 0x1ffe, 4).unwrap();
        assert_eq!((mapping.len(), offset), (0x1002, 0xffe));
        let part = Buffer::of_mapping(&mapping, offset, 4);
        let mut bytes = [0; 4];
        part.read_at(0, &mut bytes);
        assert_eq!(&bytes, b"here");
        part.write_at(3, b"d");
        whole.read_at(0x1ffe, &mut bytes);
        assert_eq!(&bytes, b"herd");
        assert_eq!(Mapping::of_memory(file.as_fd(), 0x4000, 0x1000).unwrap().mapping.len(), 0x1000);
    }

    #[test]
    fn a_file_that_is_too_short_or_none_is_refused() {
        let (file, _mapping) = memory(0x1000);
        let error = Mapping::new(file.as_fd(), 0x1001).unwrap_err();
        assert!(error.to_string().contains("4096"), "{error}");
        let null = File::open("/dev/null").unwrap();
        assert!(Mapping::new(null.as_fd(), 1).unwrap_err().to_string().contains("memfd"));
        let disk = File::open(std::env::current_exe().unwrap()).unwrap();
        assert!(matches!(Mapping::of_memory(disk.as_fd(), 0, 1), Err(crate::MapError::NotMemory)));
        assert!(Mapping::of_memory(file.as_fd(), 0, 0x1000).is_ok());
        for (offset, len) in [(1, 0x1000), (0x1000, 1), (u64::MAX, 1), (0, 0)] {
            assert!(Mapping::of_memory(file.as_fd(), offset, len).is_err(), "{len} bytes at {offset}");
        }
        assert!(Mapping::new(file.as_fd(), 0).is_err());
    }
}

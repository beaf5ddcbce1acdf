//! The layout word of a RAID10, and the sizes that follow from it.
//!
//! Bits 0-7 near copies N, 8-15 far copies F, bit 16 offset, bits 17-18 far sets; the others are zero.

use std::fmt;
use std::str::FromStr;

use super::CHUNK_SECTORS_MAX;

/// How far copies are kept apart from their originals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FarSets {
    /// All disks are one set: a far copy may be on any of them.
    One,
    /// Sets of ⌊disks / F⌋ (bit 17). Its first form, which puts copies on one disk with some counts; disks that have it
    /// are read as they were written.
    Quotient,
    /// Sets of F·N (bit 18); the last is larger where that does not divide the disks.
    Copies,
}

/// A RAID10's layout for a number of disks. No two chunks share a place, but where near copies and far sets come together and
/// the sets do not divide the disks: Linux takes such layouts, no tool makes them, and whoever computes places finds it out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Raid10Layout {
    near: u8,
    far: u8,
    offset: bool,
    far_sets: FarSets,
    disks: u32,
}

/// Why there is no such layout: what was expected instead.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected {expected}")]
pub struct NotALayout {
    /// As a phrase that follows "expected".
    pub expected: String,
}

fn expected(what: impl Into<String>) -> NotALayout {
    NotALayout { expected: what.into() }
}

/// How much of each member is used, and for what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Raid10Sizes {
    /// Chunks of the array.
    pub array_chunks: u64,
    /// Chunks of the array, in sectors: its size.
    pub array_sectors: u64,
    /// Rows (chunks of one member) that are used.
    pub rows: u64,
    /// Rows from a copy to its next far copy: 1 with offset; with far the F-th part of the rows; with neither it is not
    /// used, and all rows.
    pub stride_rows: u64,
}

impl Raid10Layout {
    /// What the word says for an array of `disks`.
    ///
    /// # Errors
    ///
    /// Unknown bits, less than two copies, more copies than disks, or near copies with offset on a number of
    /// disks that they do not divide (different chunks would share a place).
    pub fn decode(word: u32, disks: u32) -> Result<Self, NotALayout> {
        let [near, far, variant, rest] = word.to_le_bytes();
        let far_sets = match (variant >> 1, rest) {
            (0, 0) => FarSets::One,
            (1, 0) => FarSets::Quotient,
            (2, 0) => FarSets::Copies,
            _ => return Err(expected("bits 0-16 and one of 17 and 18 only")),
        };
        Self::new(near, far, variant & 1 != 0, far_sets, disks)
    }

    /// A layout of these parts.
    ///
    /// # Errors
    ///
    /// As [`Raid10Layout::decode`].
    pub fn new(near: u8, far: u8, offset: bool, far_sets: FarSets, disks: u32) -> Result<Self, NotALayout> {
        let copies = u32::from(near) * u32::from(far);
        if copies < 2 {
            return Err(expected("at least 2 copies, near times far"));
        }
        if copies > disks {
            return Err(expected(format!("at most {disks} copies, near times far, on {disks} disks")));
        }
        if offset && near > 1 && far > 1 && !disks.is_multiple_of(near.into()) {
            let why = "different chunks would share a place";
            return Err(expected(format!(
                "no offset with {near} near copies, which do not divide {disks} disks ({why})"
            )));
        }
        Ok(Self { near, far, offset, far_sets, disks })
    }

    /// The word.
    pub fn encode(&self) -> u32 {
        let sets = match self.far_sets {
            FarSets::One => 0,
            FarSets::Quotient => 1,
            FarSets::Copies => 2,
        };
        u32::from(self.near) | u32::from(self.far) << 8 | u32::from(self.offset) << 16 | sets << 17
    }

    /// Near copies, at least 1.
    pub fn near_copies(&self) -> u32 {
        self.near.into()
    }

    /// Far copies (with offset: offset copies), at least 1.
    pub fn far_copies(&self) -> u32 {
        self.far.into()
    }

    /// Copies of each chunk in all: near times far.
    pub fn copies(&self) -> u32 {
        self.near_copies() * self.far_copies()
    }

    /// Whether far copies are in the next row instead of the next part of the member.
    pub fn is_offset(&self) -> bool {
        self.offset
    }

    /// How far copies are kept apart.
    pub fn far_sets(&self) -> FarSets {
        self.far_sets
    }

    /// Disks of the array.
    pub fn disks(&self) -> u32 {
        self.disks
    }

    /// Disks of a far set; the last one has the remainder in addition.
    pub fn far_set_disks(&self) -> u32 {
        match self.far_sets {
            FarSets::One => self.disks,
            FarSets::Quotient => self.disks / self.far_copies(),
            FarSets::Copies => self.copies(),
        }
    }

    /// Whether each chunk has a copy on a disk that is there.
    pub fn has_every_chunk(&self, is_there: impl Fn(u32) -> bool) -> bool {
        let mut first = 0;
        loop {
            let near = (0..self.near_copies()).map(|copy| (first + copy) % self.disks);
            let mut copies = near.flat_map(|disk| {
                let far = std::iter::successors(Some(disk), |disk| Some(self.next_far_disk(*disk)));
                far.take(usize::from(self.far))
            });
            if !copies.any(&is_there) {
                return false;
            }
            // The next chunk's copies begin here; after some chunks it is the first disk's turn again.
            first = (first + self.near_copies()) % self.disks;
            if first == 0 {
                return true;
            }
        }
    }

    /// The disk of the next far copy of what `disk` has.
    fn next_far_disk(&self, disk: u32) -> u32 {
        let set = self.far_set_disks();
        let (left_over, last) = (self.disks % set, (self.disks / set - 1) * set);
        let next = disk + self.near_copies();
        if left_over != 0 && next > last {
            last + (next - last) % (set + left_over)
        } else {
            disk / set * set + next % set
        }
    }

    /// Sizes of an array whose members have `member_sectors` each. Partial chunks at the end of a member are not
    /// used.
    ///
    /// # Errors
    ///
    /// The array has more than 2^64 - 1 sectors, or the chunk is 0 or more than [`CHUNK_SECTORS_MAX`].
    pub fn sizes(&self, chunk_sectors: u32, member_sectors: u64) -> Result<Raid10Sizes, NotALayout> {
        if chunk_sectors == 0 || chunk_sectors > CHUNK_SECTORS_MAX {
            return Err(expected(format!("a chunk of 1 to {CHUNK_SECTORS_MAX} sectors")));
        }
        let (near, far, disks) = (u128::from(self.near), u128::from(self.far), u128::from(self.disks));
        let chunk = u128::from(chunk_sectors);
        // 64 bits times at most 32 bits, twice: no product here reaches 128 bits.
        let array_chunks = u128::from(member_sectors) / chunk / far * disks / near;
        let rows = (array_chunks * near * far).div_ceil(disks);
        let stride_rows = if self.offset { 1 } else { rows / far };
        let in_u64 = |n: u128| u64::try_from(n).map_err(|_| expected("an array below 2^64 sectors"));
        Ok(Raid10Sizes {
            array_chunks: in_u64(array_chunks)?,
            array_sectors: in_u64(array_chunks * chunk)?,
            rows: in_u64(rows)?,
            stride_rows: in_u64(stride_rows)?,
        })
    }

    /// The layout that mdadm means by `n2`, `f2` or `o2`, on so many disks.
    ///
    /// # Errors
    ///
    /// Another text, or as [`Raid10Layout::decode`].
    pub fn from_short_name(name: &str, disks: u32) -> Result<Self, NotALayout> {
        let kind = name.get(..1).unwrap_or_default();
        let copies = name.get(1..).and_then(|digits| u8::from_str(digits).ok());
        match (kind, copies) {
            ("n", Some(copies)) => Self::new(copies, 1, false, FarSets::One, disks),
            ("f", Some(copies)) => Self::new(1, copies, false, FarSets::One, disks),
            ("o", Some(copies)) => Self::new(1, copies, true, FarSets::One, disks),
            _ => Err(expected("n, f or o and a number of copies, as in n2")),
        }
    }
}

impl fmt::Display for Raid10Layout {
    /// As `mdadm --examine` does: `near=2`, `far=2`, `offset=2`, or two of them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.near > 1 {
            write!(f, "near={}", self.near)?;
        }
        if self.near > 1 && self.far > 1 {
            f.write_str(", ")?;
        }
        if self.far > 1 {
            write!(f, "{}={}", if self.offset { "offset" } else { "far" }, self.far)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_words_of_mdadm_are_its_short_names() {
        for (name, word, long) in [
            ("n2", 0x102, "near=2"),
            ("n3", 0x103, "near=3"),
            ("f2", 0x201, "far=2"),
            ("f3", 0x301, "far=3"),
            ("o2", 0x1_0201, "offset=2"),
        ] {
            let layout = Raid10Layout::from_short_name(name, 5).unwrap();
            assert_eq!(layout.encode(), word, "{name}");
            assert_eq!(layout.to_string(), long);
        }
        for wrong in ["", "n", "x2", "n2 ", "n256", "2", "n6", "n1", "é2"] {
            assert!(Raid10Layout::from_short_name(wrong, 5).is_err(), "{wrong}");
        }
    }

    #[test]
    fn layouts_that_linux_refuses_or_that_overlap_themselves_are_refused() {
        for (word, disks) in [
            (0x101, 4),      // no redundancy
            (0x002, 4),      // no far copies
            (0x200, 4),      // no near copies
            (0x105, 4),      // more copies than disks
            (0x203, 5),      // 6 copies on 5 disks
            (0x8_0102, 4),   // a bit that means nothing
            (0x100_0102, 4), // another
            (0x6_0201, 4),   // both kinds of far sets
            (0x1_0202, 5),   // near with offset: chunks would share a place
            (0x1_0202, 7),
        ] {
            assert!(Raid10Layout::decode(word, disks).is_err(), "{word:#x} on {disks}");
        }
        for (word, disks) in [(0x202, 5), (0x1_0202, 4), (0x1_0202, 6), (0x1_0102, 5), (0x2_0201, 5)] {
            assert!(Raid10Layout::decode(word, disks).is_ok(), "{word:#x} on {disks}");
        }
    }

    #[test]
    fn far_sets_have_the_size_that_their_variant_says() {
        for (word, disks, size) in
            [(0x201, 5, 5), (0x2_0201, 5, 2), (0x2_0201, 7, 3), (0x4_0201, 5, 2), (0x4_0202, 9, 4)]
        {
            assert_eq!(Raid10Layout::decode(word, disks).unwrap().far_set_disks(), size, "{word:#x}");
        }
    }

    #[test]
    fn sizes_are_those_of_arrays_that_linux_made() {
        // Layout, disks, chunk in KiB, members' sectors; array's bytes as the kernel gave them.
        for (name, disks, chunk_kib, member, bytes) in [
            ("n2", 4, 64, 96_256, 98_566_144),
            ("o2", 4, 64, 96_256, 98_566_144),
            ("n2", 4, 512, 389_120, 398_458_880),
            ("n3", 4, 512, 77_824, 52_953_088),
            ("n2", 4, 128, 79_872, 81_788_928),
            ("f2", 2, 4, 79_872, 40_894_464),
            ("f2", 4, 512, 94_208, 96_468_992),
        ] {
            let layout = Raid10Layout::from_short_name(name, disks).unwrap();
            let sizes = layout.sizes(chunk_kib * 2, member).unwrap();
            assert_eq!(sizes.array_sectors * 512, bytes, "{name} on {disks}");
        }
    }

    #[test]
    fn disks_can_be_missing_as_long_as_each_chunk_has_another_copy() {
        for (word, disks, missing, has_all) in [
            (0x102, 4, &[0, 2][..], true),
            (0x102, 4, &[1, 3], true),
            (0x102, 4, &[0, 1], false),
            (0x102, 5, &[4, 0], false),
            (0x103, 4, &[0, 1], true),
            (0x201, 4, &[0, 2], true),
            (0x201, 4, &[3, 0], false),
            (0x1_0201, 4, &[1, 2], false),
            (0x202, 4, &[0, 1, 2], true),
            (0x4_0201, 4, &[1, 2], true),
            (0x4_0201, 4, &[2, 3], false),
        ] {
            let layout = Raid10Layout::decode(word, disks).unwrap();
            let found = layout.has_every_chunk(|disk| !missing.contains(&disk));
            assert_eq!(found, has_all, "{word:#x} on {disks} without {missing:?}");
        }
    }

    #[test]
    fn far_copies_cut_each_member_into_equal_parts() {
        let layout = Raid10Layout::from_short_name("f2", 4).unwrap();
        // 7 chunks: 3 rows a part, one chunk left over.
        let sizes = layout.sizes(8, 7 * 8 + 5).unwrap();
        let expected = Raid10Sizes { array_chunks: 12, array_sectors: 96, rows: 6, stride_rows: 3 };
        assert_eq!(sizes, expected);
        let offset = Raid10Layout::from_short_name("o2", 4).unwrap();
        assert_eq!(offset.sizes(8, 7 * 8).unwrap(), Raid10Sizes { stride_rows: 1, ..expected });
    }

    #[test]
    fn an_array_beyond_64_bits_of_sectors_is_an_error() {
        let layout = Raid10Layout::from_short_name("n2", 4).unwrap();
        assert!(layout.sizes(8, u64::MAX).is_err());
        assert!(layout.sizes(0, 100).is_err());
        assert_eq!(layout.sizes(8, 7).unwrap().array_chunks, 0);
    }

    proptest! {
        #[test]
        fn a_word_that_decodes_encodes_to_itself(word in 0u32..0x10_0000, disks in 0u32..40) {
            if let Ok(layout) = Raid10Layout::decode(word, disks) {
                prop_assert_eq!(layout.encode(), word);
                prop_assert!(layout.copies() <= disks && layout.far_set_disks() >= 1);
            }
        }

        #[test]
        fn an_array_uses_no_more_rows_than_its_members_have(
            near in 1u8..5, far in 1u8..5, offset: bool, disks in 2u32..20, member in 0u64..5000, chunk in 1u32..40,
        ) {
            let Ok(layout) = Raid10Layout::new(near, far, offset, FarSets::One, disks) else { return Ok(()) };
            let sizes = layout.sizes(chunk, member).unwrap();
            prop_assert!(sizes.rows * u64::from(chunk) <= member);
            // All copies have room, and one chunk more would not have had it in as many rows.
            let room = member / u64::from(chunk) / u64::from(far) * u64::from(disks);
            let most = (0..).take_while(|n| n * u64::from(near) <= room).last().unwrap();
            prop_assert_eq!(sizes.array_chunks, most);
        }
    }
}

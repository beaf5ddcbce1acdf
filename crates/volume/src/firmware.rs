//! Members of arrays that a disk controller's firmware knows and mdadm calls containers: told, and left to Linux.
//!
//! Their metadata lies at the end of the disk, so that the start shows what the array holds: of a mirror all of it, with its
//! partitions. Written to by itself, such a disk would differ from the others without anybody knowing. What is found here is for refusing
//! alone: no array of these is read.
//!
//! Sources: the SNIA's Common RAID Disk Data Format Specification 2.0, and the manual page of mdadm's `imsm` and `ddf` formats.

use blockwork_format::Source;

/// Whose member a disk is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Firmware {
    /// Intel Matrix Storage: mdadm's `imsm`.
    Intel,
    /// The Disk Data Format of the SNIA: mdadm's `ddf`.
    Ddf,
}

const INTEL_MAGIC: &[u8] = b"Intel Raid ISM Cfg Sig. ";
const DDF_MAGIC: u32 = 0xde11_de11;
/// The second digit group of a DDF's revision is what changes: `01.00.00`, `01.02.00`, ...
const DDF_REVISION: &[u8] = b"01.";
const DDF_REVISION_AT: usize = 32;

/// How far before the end of the disk, bytes: Intel's in the last sector but one, of either size.
const INTEL_PLACES: [u64; 2] = [2 * 512, 2 * 4096];
/// DDF's anchor in the last sector, or before 128 KiB of a controller's own.
const DDF_PLACES: [u64; 2] = [512, 257 * 512];

impl Firmware {
    /// As `blkid` names it.
    pub fn kind(self) -> &'static str {
        match self {
            Firmware::Intel => "isw_raid_member",
            Firmware::Ddf => "ddf_raid_member",
        }
    }

    /// What its owner calls it, with an article.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Firmware::Intel => "an Intel Matrix Storage (imsm)",
            Firmware::Ddf => "a DDF",
        }
    }

    /// What is to be done about a member.
    pub(crate) fn advice(self) -> String {
        format!(
            "it is a member of {} array of a disk controller's firmware, which cannot be assembled here: let Linux serve this array \
             (mdadm), or, if the disk is in none any more, take the mark off (`wipefs --all --types {}`)",
            self.name(),
            self.kind()
        )
    }
}

/// Whose member a whole disk is.
pub(crate) fn find(source: &dyn Source) -> Option<Firmware> {
    let before_end = |distance: u64| {
        let mut sector = [0; 512];
        source.read_at(source.size().checked_sub(distance)?, &mut sector).ok()?;
        Some(sector)
    };
    if INTEL_PLACES.into_iter().filter_map(before_end).any(|sector| sector.starts_with(INTEL_MAGIC)) {
        return Some(Firmware::Intel);
    }
    let is_ddf = |sector: [u8; 512]| {
        let magics = [DDF_MAGIC.to_be_bytes(), DDF_MAGIC.to_le_bytes()];
        magics.iter().any(|magic| sector.starts_with(magic))
            && sector[DDF_REVISION_AT..].starts_with(DDF_REVISION)
    };
    DDF_PLACES.into_iter().filter_map(before_end).any(is_ddf).then_some(Firmware::Ddf)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    fn blkid(bytes: &[u8]) -> String {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        let mut blkid = Command::new("blkid");
        let output = blkid.args(["-p", "-o", "value", "-s", "TYPE"]).arg(file.path()).output();
        let output = output.unwrap_or_else(|error| panic!("blkid: {error}; it is in util-linux"));
        String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
    }

    /// A disk with these bytes so far before its end.
    fn disk(distance: usize, pieces: &[(usize, &[u8])]) -> Vec<u8> {
        let mut bytes = vec![0; 4 << 20];
        let start = bytes.len() - distance;
        pieces.iter().for_each(|(at, piece)| bytes[start + at..][..piece.len()].copy_from_slice(piece));
        bytes
    }

    #[test]
    fn members_are_told_as_blkid_tells_them() {
        let intel = disk(1024, &[(0, INTEL_MAGIC), (24, b"1.0.00")]);
        let anchor: [(usize, &[u8]); 2] = [(0, &DDF_MAGIC.to_be_bytes()), (DDF_REVISION_AT, b"01.02.00")];
        let (last, before) = (disk(512, &anchor), disk(257 * 512, &anchor));
        for (bytes, expected) in [(intel, Firmware::Intel), (last, Firmware::Ddf), (before, Firmware::Ddf)] {
            assert_eq!(find(&bytes), Some(expected));
            assert_eq!(blkid(&bytes), expected.kind());
            let article = if expected == Firmware::Ddf { "of a DDF array of" } else { "of an Intel" };
            assert!(expected.advice().contains(article), "{}", expected.advice());
        }
    }

    #[test]
    fn a_disk_of_large_sectors_has_it_two_of_these_before_its_end() {
        assert_eq!(find(&disk(8192, &[(0, INTEL_MAGIC)])), Some(Firmware::Intel));
    }

    #[test]
    fn nothing_is_found_in_nothing() {
        assert_eq!(find(&disk(512, &[(0, &DDF_MAGIC.to_be_bytes())])), None, "a magic number by chance");
        for size in [0, 511, 512, 1024, 4 << 20] {
            assert_eq!(find(&vec![0; size]), None);
        }
    }
}

//! What a disk or partition seems to hold, by the magic numbers at its start: for people who look, never to decide
//! what is done with it.
//!
//! Sources: the superblock layouts in the kernel's `fs/*/` headers, util-linux' documentation of `blkid`, and the md and
//! LVM2 formats.

use blockwork_format::Source;

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signature {
    /// As `blkid` names it: `xfs`, `ext4`, `LVM2_member`, `linux_raid_member` ...
    pub kind: &'static str,
    /// Its UUID, where it has one at a known place.
    pub uuid: Option<String>,
}

/// A magic number: where, what, whose; and where that keeps its UUID.
struct Magic {
    offset: u64,
    bytes: &'static [u8],
    kind: &'static str,
    uuid: Option<u64>,
}

const fn magic(offset: u64, bytes: &'static [u8], kind: &'static str, uuid: Option<u64>) -> Magic {
    Magic { offset, bytes, kind, uuid }
}

/// In order of trust: containers first, since what they hold may begin with a file system's old superblock.
const MAGICS: &[Magic] = &[
    magic(4096, b"\xfc\x4e\x2b\xa9", "linux_raid_member", Some(4096 + 16)),
    magic(0, b"\xfc\x4e\x2b\xa9", "linux_raid_member", Some(16)),
    magic(512, b"LABELONE", "LVM2_member", None),
    magic(0, b"LUKS\xba\xbe", "crypto_LUKS", None),
    magic(0, b"XFSB", "xfs", Some(32)),
    magic(0x1_0040, b"_BHRfS_M", "btrfs", Some(0x1_0020)),
    magic(4086, b"SWAPSPACE2", "swap", Some(1036)),
    magic(0, b"QFI\xfb", "qcow2", None),
    magic(0, b"hsqs", "squashfs", None),
    magic(1024, b"\xe2\xe1\xf5\xe0", "erofs", Some(1024 + 48)),
    magic(1024, b"\x10\x20\xf5\xf2", "f2fs", Some(1024 + 108)),
    magic(0x8001, b"CD001", "iso9660", None),
    magic(3, b"NTFS    ", "ntfs", None),
    magic(82, b"FAT32   ", "vfat", None),
    magic(54, b"FAT1", "vfat", None),
    magic(0, b"SnAp", "DM_snapshot_cow", None),
];

/// Looks for a signature. `None` where none is known, or the place cannot be read.
pub fn signature(source: &dyn Source) -> Option<Signature> {
    if let Some(ext) = ext(source) {
        // A PV or md member may have an ext superblock left from before; those are looked for first.
        return container(source).or(Some(ext));
    }
    MAGICS.iter().find(|magic| matches(source, magic)).map(|magic| found(source, magic))
}

fn container(source: &dyn Source) -> Option<Signature> {
    MAGICS[..4].iter().find(|magic| matches(source, magic)).map(|magic| found(source, magic))
}

fn matches(source: &dyn Source, magic: &Magic) -> bool {
    let mut bytes = [0; 16];
    let bytes = &mut bytes[..magic.bytes.len()];
    source.read_at(magic.offset, bytes).is_ok() && bytes == magic.bytes
}

fn found(source: &dyn Source, magic: &Magic) -> Signature {
    let uuid = magic.uuid.and_then(|offset| uuid_at(source, offset));
    Signature { kind: magic.kind, uuid }
}

fn uuid_at(source: &dyn Source, offset: u64) -> Option<String> {
    let mut bytes = [0; 16];
    source.read_at(offset, &mut bytes).ok()?;
    if bytes == [0; 16] {
        return None;
    }
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    Some(format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]))
}

/// ext2, 3 and 4 share a magic number; what they can do tells them apart.
fn ext(source: &dyn Source) -> Option<Signature> {
    let mut sb = [0; 0x70];
    source.read_at(1024, &mut sb).ok()?;
    if sb[0x38..0x3a] != [0x53, 0xef] {
        return None;
    }
    let word = |at: usize| u32::from_le_bytes([sb[at], sb[at + 1], sb[at + 2], sb[at + 3]]);
    let (compat, incompat) = (word(0x5c), word(0x60));
    const HAS_JOURNAL: u32 = 4;
    const EXTENTS_OR_64BIT_OR_FLEX_BG: u32 = 0x40 | 0x80 | 0x200;
    let kind = if incompat & EXTENTS_OR_64BIT_OR_FLEX_BG != 0 {
        "ext4"
    } else if compat & HAS_JOURNAL != 0 {
        "ext3"
    } else {
        "ext2"
    };
    Some(Signature { kind, uuid: uuid_at(source, 1024 + 0x68) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// A file system made by its own tool, and what blkid says of it.
    fn made_by(size: u64, program: &str, args: &[&str]) -> (Option<Signature>, String) {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(size).unwrap();
        let status = Command::new(program).args(args).arg(file.path()).output();
        let status = status
            .unwrap_or_else(|error| panic!("{program}: {error}; scripts/install-test-tools installs it"));
        assert!(status.status.success(), "{program}: {}", String::from_utf8_lossy(&status.stderr));
        let mut blkid = Command::new("blkid");
        blkid.args(["-p", "-o", "value", "-s", "TYPE", "-s", "UUID"]).arg(file.path());
        let blkid = blkid.output().unwrap();
        let bytes = std::fs::read(file.path()).unwrap();
        (signature(&bytes), String::from_utf8(blkid.stdout).unwrap())
    }

    #[test]
    fn file_systems_are_told_as_blkid_tells_them() {
        for (size, program, args) in [
            (512 << 20, "mkfs.xfs", &["-q"][..]),
            (16 << 20, "mkfs.ext4", &["-q", "-F"]),
            (16 << 20, "mkfs.ext3", &["-q", "-F"]),
            (16 << 20, "mkfs.ext2", &["-q", "-F"]),
            (16 << 20, "mkswap", &["-q"]),
        ] {
            let (found, blkid) = made_by(size, program, args);
            let found = found.unwrap_or_else(|| panic!("{program}: nothing found"));
            assert!(blkid.lines().any(|line| line == found.kind), "{program}: {found:?}, blkid says {blkid}");
            let uuid = found.uuid.unwrap();
            assert!(blkid.lines().any(|line| line == uuid), "{program}: {uuid}, blkid says {blkid}");
        }
    }

    #[test]
    fn nothing_is_found_in_nothing() {
        assert_eq!(signature(&vec![0u8; 1 << 20]), None);
        assert_eq!(signature(&Vec::<u8>::new()), None);
        assert_eq!(signature(&vec![0xffu8; 4096]), None);
    }
}

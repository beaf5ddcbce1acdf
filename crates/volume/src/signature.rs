//! What a disk or partition seems to hold, by the magic numbers at its start: for people who look, never to decide
//! what is done with it.
//!
//! Sources: the superblock layouts in the kernel's `fs/*/` headers, util-linux' documentation of `blkid`, ECMA-119, the
//! LUKS1 and LUKS2 specifications, and the md and LVM2 formats.

use blockwork_format::Source;

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signature {
    /// As `blkid` names it: `xfs`, `ext4`, `LVM2_member`, `linux_raid_member` ...
    pub kind: &'static str,
    /// Its UUID, or what it has instead of one (a serial number, a date), where that lies at a known place.
    pub uuid: Option<String>,
    /// Its label as it is on the disk, where it has one at a known place: `escape` it before printing.
    pub label: Option<String>,
}

/// A magic number: where, what, whose; and where that keeps its UUID and its label.
struct Magic {
    offset: u64,
    bytes: &'static [u8],
    kind: &'static str,
    id: Id,
    label: Label,
}

/// Where something keeps what tells it from others of its kind.
#[derive(Clone, Copy)]
enum Id {
    None,
    /// 16 bytes.
    Uuid(u64),
    /// A UUID as text, of at most so many bytes.
    Text(u64, usize),
    /// 4 bytes, little-endian, as DOS shows them: `12AB-34CD`.
    Serial32(u64),
    /// 8 bytes, little-endian, in capitals.
    Serial64(u64),
    /// A date of ISO 9660: `2026-11-21-02-41-00-00`.
    Date(u64),
}

/// Where something keeps its name.
#[derive(Clone, Copy)]
enum Label {
    None,
    /// At most so many bytes.
    Bytes(u64, usize),
    /// At most so many units of UTF-16, little-endian.
    Wide(u64, usize),
    /// In the root directory of a FAT: the boot sector's may be an old one.
    Fat,
}

const fn magic(offset: u64, bytes: &'static [u8], kind: &'static str, id: Id, label: Label) -> Magic {
    Magic { offset, bytes, kind, id, label }
}

/// Magic number of bcache and of bcachefs, behind the first bytes that both have.
const BCACHE: &[u8] = b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81";
const BCACHEFS: &[u8] = b"\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef";

/// What other things are kept in: what these hold may begin with a file system's old superblock, or its new one.
const CONTAINERS: &[Magic] = &[
    magic(4096, b"\xfc\x4e\x2b\xa9", "linux_raid_member", Id::Uuid(4096 + 16), Label::Bytes(4096 + 32, 32)),
    magic(0, b"\xfc\x4e\x2b\xa9", "linux_raid_member", Id::Uuid(16), Label::Bytes(32, 32)),
    magic(512, b"LABELONE", "LVM2_member", Id::None, Label::None),
    magic(0, b"LUKS\xba\xbe\0\x01", "crypto_LUKS", Id::Text(168, 40), Label::None),
    magic(0, b"LUKS\xba\xbe\0\x02", "crypto_LUKS", Id::Text(168, 40), Label::Bytes(24, 48)),
    magic(3, b"-FVE-FS-", "BitLocker", Id::None, Label::None),
    magic(4096 + 24, BCACHE, "bcache", Id::Uuid(4096 + 40), Label::Bytes(4096 + 72, 32)),
    magic(0, b"bluestore block device", "ceph_bluestore", Id::None, Label::None),
    // The first pair of a vdev label's list, which begins at 16 KiB.
    magic(16_404, b"\0\0\0\x07version\0", "zfs_member", Id::None, Label::None),
];

/// Images that are not raw, and what files are compressed to.
const IMAGES: &[Magic] = &[
    magic(0, b"QFI\xfb", "qcow2", Id::None, Label::None),
    magic(0, b"QED\0", "qed", Id::None, Label::None),
    magic(0, b"KDMV", "vmdk", Id::None, Label::None),
    magic(0, b"COWD", "vmdk", Id::None, Label::None),
    magic(0, b"# Disk DescriptorFile", "vmdk", Id::None, Label::None),
    magic(0, b"vhdxfile", "vhdx", Id::None, Label::None),
    // Of a fixed one, only the end differs from a raw disk: `fixed_vhd`.
    magic(0, b"conectix", "vpc", Id::None, Label::None),
    magic(64, b"\x7f\x10\xda\xbe", "vdi", Id::None, Label::None),
    magic(0, b"WithoutFreeSpace", "parallels", Id::None, Label::None),
    magic(0, b"WithouFreSpacExt", "parallels", Id::None, Label::None),
    magic(0, b"\x1f\x8b\x08", "gzip", Id::None, Label::None),
    magic(0, b"\xfd7zXZ\0", "xz", Id::None, Label::None),
    magic(0, b"\x28\xb5\x2f\xfd", "zstd", Id::None, Label::None),
    // The size of its blocks lies between.
    magic(4, b"1AY&SY", "bzip2", Id::None, Label::None),
    magic(0, b"\x04\x22\x4d\x18", "lz4", Id::None, Label::None),
];

const FILE_SYSTEMS: &[Magic] = &[
    magic(0, b"XFSB", "xfs", Id::Uuid(32), Label::Bytes(108, 12)),
    magic(0x1_0040, b"_BHRfS_M", "btrfs", Id::Uuid(0x1_0020), Label::Bytes(0x1_012b, 256)),
    magic(4086, b"SWAPSPACE2", "swap", Id::Uuid(1036), Label::Bytes(1052, 16)),
    magic(4086, b"S1SUSPEND", "swsuspend", Id::Uuid(1036), Label::Bytes(1052, 16)),
    magic(4096 + 24, BCACHEFS, "bcachefs", Id::Uuid(4096 + 56), Label::Bytes(4096 + 72, 32)),
    magic(0, b"hsqs", "squashfs", Id::None, Label::None),
    magic(1024, b"\xe2\xe1\xf5\xe0", "erofs", Id::Uuid(1024 + 48), Label::Bytes(1024 + 64, 16)),
    magic(1024, b"\x10\x20\xf5\xf2", "f2fs", Id::Uuid(1024 + 108), Label::Wide(1024 + 124, 512)),
    magic(0x8000, b"JFS1", "jfs", Id::Uuid(0x8000 + 136), Label::Bytes(0x8000 + 152, 16)),
    magic(0x1_0034, b"ReIsEr", "reiserfs", Id::Uuid(0x1_0000 + 84), Label::Bytes(0x1_0000 + 100, 16)),
    magic(0x8001, b"CD001", "iso9660", Id::Date(0x8000 + 830), Label::Bytes(0x8000 + 40, 32)),
    magic(3, b"NTFS    ", "ntfs", Id::Serial64(72), Label::None),
    magic(3, b"EXFAT   ", "exfat", Id::Serial32(100), Label::None),
    magic(82, b"FAT32   ", "vfat", Id::Serial32(67), Label::Fat),
    magic(54, b"FAT1", "vfat", Id::Serial32(39), Label::Fat),
    magic(32, b"NXSB", "apfs", Id::Uuid(72), Label::None),
    magic(0, b"SnAp", "DM_snapshot_cow", Id::None, Label::None),
];

/// Entries of a FAT's root directory in which its label is looked for: the label is the first of them in practice.
const FAT_ENTRIES: usize = 128;

/// Looks for a signature. `None` where none is known, or the place cannot be read.
pub fn signature(source: &dyn Source) -> Option<Signature> {
    let of = |magics: &[Magic]| magics.iter().find(|magic| magic.is_in(source)).map(|magic| magic.of(source));
    of(CONTAINERS).or_else(|| of(IMAGES)).or_else(|| ext(source)).or_else(|| of(FILE_SYSTEMS))
}

impl Signature {
    /// Of a disk that is an image in another format than raw, or compressed: that it is, and how its owner gets at the disk in it.
    pub(crate) fn advice(&self) -> Option<String> {
        let kind = self.kind;
        IMAGES.iter().find(|magic| magic.kind == kind)?;
        let convert = "make a raw one of that (`qemu-img convert -O raw FILE NEW`)";
        let (what, remedy) = match kind {
            "gzip" => ("file", "decompress it (`gunzip --keep FILE`)"),
            "xz" => ("file", "decompress it (`unxz --keep FILE`)"),
            "zstd" => ("file", "decompress it (`unzstd FILE`)"),
            "bzip2" => ("file", "decompress it (`bunzip2 --keep FILE`)"),
            "lz4" => ("file", "decompress it (`unlz4 FILE NEW`)"),
            _ => ("image", convert),
        };
        Some(format!("it is a {kind} {what}, which is taken as it is, and not for the disk in it: {remedy}"))
    }
}

/// Of a whole disk that is a fixed VHD: the disk in it lies there as it is, and the footer behind it is taken for a part of it.
pub(crate) fn fixed_vhd(source: &dyn Source) -> Option<String> {
    const FOOTER_BYTES: u64 = 512;
    const FIXED: [u8; 4] = [0, 0, 0, 2];
    let footer = bytes_at(source, source.size().checked_sub(FOOTER_BYTES)?, 512)?;
    let found = u32::from_be_bytes([footer[64], footer[65], footer[66], footer[67]]);
    let sum: u32 = footer.iter().map(|byte| u32::from(*byte)).sum();
    let of_itself: u32 = footer[64..68].iter().map(|byte| u32::from(*byte)).sum();
    let is_one = footer.starts_with(b"conectix") && footer[60..64] == FIXED && found == !(sum - of_itself);
    is_one.then(|| {
        "it is a vpc image of fixed size, whose last 512 bytes are no part of the disk in it, and are taken for one: make a raw one of that \
         (`qemu-img convert -f vpc -O raw FILE NEW`)"
            .to_owned()
    })
}

/// Of a file system whose device ends before it: that it was cut short.
pub(crate) fn cut_short(source: &dyn Source, found: &Signature) -> Option<String> {
    let bytes = match found.kind {
        "ext2" | "ext3" | "ext4" => ext_bytes(source)?,
        "xfs" => xfs_bytes(source)?,
        _ => return None,
    };
    let there = source.size();
    (bytes > u128::from(there)).then(|| {
        format!(
            "the {} on it has {bytes} bytes, and the device ends after {there}: it was cut short, and what lay behind that is not there; \
             bring the rest back before it is written to or checked (a copy that was not finished, a device that was made smaller)",
            found.kind
        )
    })
}

/// The size by the superblock: blocks, of so many KiB as a power of two.
fn ext_bytes(source: &dyn Source) -> Option<u128> {
    const HAS_64BIT: u32 = 0x80;
    const BLOCK_SHIFT_MAX: u32 = 6;
    let sb = bytes_at(source, 1024, 0x154)?;
    let word = |at: usize| u32::from_le_bytes([sb[at], sb[at + 1], sb[at + 2], sb[at + 3]]);
    let high = if word(0x60) & HAS_64BIT != 0 { word(0x150) } else { 0 };
    let blocks = u128::from(high) << 32 | u128::from(word(4));
    Some(word(24)).filter(|shift| *shift <= BLOCK_SHIFT_MAX).map(|shift| blocks << (10 + shift))
}

/// The size by the superblock: the data section's blocks.
fn xfs_bytes(source: &dyn Source) -> Option<u128> {
    let sb = bytes_at(source, 0, 16)?;
    let block_bytes = u32::from_be_bytes(sb[4..8].try_into().ok()?);
    let blocks = u64::from_be_bytes(sb[8..16].try_into().ok()?);
    Some(u128::from(block_bytes) * u128::from(blocks))
}

impl Magic {
    fn is_in(&self, source: &dyn Source) -> bool {
        bytes_at(source, self.offset, self.bytes.len()).is_some_and(|bytes| bytes == self.bytes)
    }

    fn of(&self, source: &dyn Source) -> Signature {
        Signature { kind: self.kind, uuid: self.id.read(source), label: self.label.read(source) }
    }
}

impl Id {
    fn read(self, source: &dyn Source) -> Option<String> {
        match self {
            Id::None => None,
            Id::Uuid(at) => uuid_at(source, at),
            Id::Text(at, most) => text(&bytes_at(source, at, most)?),
            Id::Serial32(at) => {
                let serial = bytes_at(source, at, 4)?;
                let [a, b, c, d] = serial[..] else { return None };
                Some(format!("{d:02X}{c:02X}-{b:02X}{a:02X}"))
            }
            Id::Serial64(at) => {
                let serial = bytes_at(source, at, 8)?;
                Some(serial.iter().rev().map(|byte| format!("{byte:02X}")).collect())
            }
            Id::Date(at) => {
                let digits = text(&bytes_at(source, at, 16)?)?;
                let is_date = digits.len() == 16 && digits.bytes().all(|byte| byte.is_ascii_digit());
                is_date.then(|| {
                    let pair = |nth: usize| &digits[2 * nth..2 * nth + 2];
                    let rest: Vec<&str> = (2..8).map(pair).collect();
                    format!("{}-{}", &digits[..4], rest.join("-"))
                })
            }
        }
    }
}

impl Label {
    fn read(self, source: &dyn Source) -> Option<String> {
        match self {
            Label::None => None,
            Label::Bytes(at, most) => text(&bytes_at(source, at, most)?),
            Label::Fat => fat_label(source),
            Label::Wide(at, most) => {
                let bytes = bytes_at(source, at, 2 * most)?;
                let (units, _) = bytes.as_chunks::<2>();
                let units: Vec<u16> = units
                    .iter()
                    .map(|unit| u16::from_le_bytes(*unit))
                    .take_while(|unit| *unit != 0)
                    .collect();
                Some(String::from_utf16_lossy(&units)).filter(|label| !label.is_empty())
            }
        }
    }
}

fn bytes_at(source: &dyn Source, offset: u64, length: usize) -> Option<Vec<u8>> {
    let mut bytes = vec![0; length];
    source.read_at(offset, &mut bytes).ok()?;
    Some(bytes)
}

/// The text up to the first NUL, without the blanks that fill its place; none where nothing is left.
fn text(bytes: &[u8]) -> Option<String> {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    let text = String::from_utf8_lossy(&bytes[..end]).trim_end().to_owned();
    Some(text).filter(|text| !text.is_empty())
}

fn uuid_at(source: &dyn Source, offset: u64) -> Option<String> {
    let bytes = bytes_at(source, offset, 16)?;
    if bytes.iter().all(|byte| *byte == 0) {
        return None;
    }
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    Some(format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]))
}

/// The name of the entry that is a volume's label, and not a file or a part of a long name.
fn fat_label(source: &dyn Source) -> Option<String> {
    const LABEL: u8 = 8;
    const LABEL_OR_FOLDER: u8 = LABEL | 0x10;
    const LONG_NAME: u8 = 0xf;
    const DELETED: u8 = 0xe5;
    let root = bytes_at(source, fat_root(&bytes_at(source, 0, 512)?)?, 32 * FAT_ENTRIES)?;
    let (entries, _) = root.as_chunks::<32>();
    let used = entries.iter().take_while(|entry| entry[0] != 0).filter(|entry| entry[0] != DELETED);
    let mut labels = used.filter(|entry| entry[11] & LABEL_OR_FOLDER == LABEL && entry[11] != LONG_NAME);
    text(&labels.next()?[..11])
}

/// Where the root directory of a FAT begins, bytes: behind the copies of the table; in FAT32, at its cluster.
fn fat_root(boot: &[u8]) -> Option<u64> {
    let word = |at: usize| u64::from(u16::from_le_bytes([boot[at], boot[at + 1]]));
    let long = |at: usize| word(at) | word(at + 2) << 16;
    let (sector, cluster_sectors, tables) = (word(11), u64::from(boot[13]), u64::from(boot[16]));
    let behind = |table_sectors: u64| word(14) + tables * table_sectors;
    let at = match word(22) {
        0 => behind(long(36)) + long(44).checked_sub(2)? * cluster_sectors,
        table_sectors => behind(table_sectors),
    };
    Some(at * sector)
}

/// ext2, 3 and 4 share a magic number; what they can do tells them apart.
fn ext(source: &dyn Source) -> Option<Signature> {
    const AT: u64 = 1024;
    let sb = bytes_at(source, AT, 0x88)?;
    if sb[0x38..0x3a] != [0x53, 0xef] {
        return None;
    }
    let word = |at: usize| u32::from_le_bytes([sb[at], sb[at + 1], sb[at + 2], sb[at + 3]]);
    let (compat, incompat) = (word(0x5c), word(0x60));
    const HAS_JOURNAL: u32 = 4;
    const IS_JOURNAL: u32 = 8;
    const EXTENTS_OR_64BIT_OR_FLEX_BG: u32 = 0x40 | 0x80 | 0x200;
    let kind = if incompat & IS_JOURNAL != 0 {
        "jbd"
    } else if incompat & EXTENTS_OR_64BIT_OR_FLEX_BG != 0 {
        "ext4"
    } else if compat & HAS_JOURNAL != 0 {
        "ext3"
    } else {
        "ext2"
    };
    Some(Signature { kind, uuid: uuid_at(source, AT + 0x68), label: text(&sb[0x78..0x88]) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// What blkid says of the bytes, a value a line.
    fn blkid(bytes: &[u8], tag: &str) -> String {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        let mut blkid = Command::new("blkid");
        let output = blkid.args(["-p", "-o", "value", "-s", tag]).arg(file.path()).output();
        let output = output.unwrap_or_else(|error| panic!("blkid: {error}; it is in util-linux"));
        String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
    }

    /// What is found must be what blkid finds.
    #[track_caller]
    fn compare(what: &str, bytes: &[u8]) -> Signature {
        let found = signature(&bytes.to_vec()).unwrap_or_else(|| panic!("{what}: nothing found"));
        assert_eq!(found.kind, blkid(bytes, "TYPE"), "{what}");
        assert_eq!(found.uuid.clone().unwrap_or_default(), blkid(bytes, "UUID"), "{what}");
        assert_eq!(found.label.clone().unwrap_or_default(), blkid(bytes, "LABEL"), "{what}");
        found
    }

    /// A file system made by its own tool.
    fn made_by(size: u64, program: &str, args: &[&str]) -> Vec<u8> {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(size).unwrap();
        let status = Command::new(program).args(args).arg(file.path()).output();
        let status = status
            .unwrap_or_else(|error| panic!("{program}: {error}; scripts/install-test-tools installs it"));
        assert!(status.status.success(), "{program}: {}", String::from_utf8_lossy(&status.stderr));
        std::fs::read(file.path()).unwrap()
    }

    #[test]
    fn file_systems_are_told_as_blkid_tells_them() {
        for (size, program, args, kind) in [
            (512 << 20, "mkfs.xfs", &["-q", "-L", "twelve bytes"][..], "xfs"),
            (16 << 20, "mkfs.ext4", &["-q", "-F", "-L", "root"], "ext4"),
            (16 << 20, "mkfs.ext3", &["-q", "-F"], "ext3"),
            (16 << 20, "mkfs.ext2", &["-q", "-F", "-L", "sixteen bytes..."], "ext2"),
            (16 << 20, "mkfs.ext4", &["-q", "-F", "-O", "journal_dev"], "jbd"),
            (16 << 20, "mkswap", &["-q", "-L", "swap space"], "swap"),
        ] {
            assert_eq!(compare(program, &made_by(size, program, args)).kind, kind);
        }
    }

    /// A megabyte with these bytes at these places.
    fn laid_out(pieces: &[(usize, &[u8])]) -> Vec<u8> {
        let mut bytes = vec![0; 1 << 20];
        pieces.iter().for_each(|(at, piece)| bytes[*at..][..piece.len()].copy_from_slice(piece));
        bytes
    }

    const UUID: &[u8] = b"0d4c8a9e-7f53-4be1-a2f4-3f6c2a6d9b10";

    #[test]
    fn what_blkid_takes_without_a_checksum_is_told_as_it_tells_it() {
        let luks = [
            (0, &b"LUKS\xba\xbe\0\x02"[..]),
            (8, &[0, 0, 0, 0, 0, 0, 0x40, 0]),
            (24, b"secret"),
            (168, UUID),
        ];
        compare("LUKS2", &laid_out(&luks));
        let old = [(0, &b"LUKS\xba\xbe\0\x01"[..]), (168, UUID)];
        assert_eq!(compare("LUKS1", &laid_out(&old)).label, None);
        // The table has 4 sectors twice, behind the boot sector.
        let fat = |entry: &'static [u8]| {
            laid_out(&[
                (0, b"\xeb\x3c\x90mkfs.fat\0\x02\x04\x01\0\x02\0\x02\0\x08\xf8\x04\0"),
                (38, b"\x29\x37\x2c\xb4\x74"),
                (43, b"OLD LABEL  "),
                (54, b"FAT12   "),
                (510, b"\x55\xaa\xf8\xff\xff"),
                (9 * 512, b"LONG NAME  \x0f"),
                (9 * 512 + 32, entry),
            ])
        };
        assert_eq!(compare("FAT", &fat(b"EFI        \x08")).label.as_deref(), Some("EFI"));
        assert_eq!(compare("FAT", &fat(b"A FILE     \x20")).label, None);
        assert_eq!(compare("FAT", &fat(b"\xe5ELETED    \x08")).label, None);
        let disc =
            [(0x8000, &b"\x01CD001\x01"[..]), (0x8028, b"DISC "), (0x8000 + 830, b"2026112102410700\0")];
        assert_eq!(compare("ISO 9660", &laid_out(&disc)).uuid.as_deref(), Some("2026-11-21-02-41-07-00"));
        let volume = [(32, &b"NXSB"[..]), (72, b"sixteen bytes...")];
        assert_eq!(signature(&laid_out(&volume)).unwrap().kind, "apfs");
    }

    #[test]
    fn a_container_counts_more_than_what_was_there_before() {
        let mut bytes = made_by(16 << 20, "mkfs.ext4", &["-q", "-F"]);
        bytes[..8].copy_from_slice(b"LUKS\xba\xbe\0\x01");
        assert_eq!(signature(&bytes).unwrap().kind, "crypto_LUKS");
    }

    #[test]
    fn images_that_are_not_raw_are_known_and_what_is_to_be_done() {
        for format in ["qcow2", "qed", "vmdk", "vhdx", "vdi", "vpc", "parallels"] {
            let folder = tempfile::tempdir().unwrap();
            let image = folder.path().join("image");
            let mut qemu_img = Command::new("qemu-img");
            let made = qemu_img.args(["create", "-q", "-f", format]).arg(&image).arg("16M").status();
            assert!(made.unwrap_or_else(|error| panic!("qemu-img: {error}; it is in qemu-utils")).success());
            let found = signature(&std::fs::read(&image).unwrap())
                .unwrap_or_else(|| panic!("{format}: nothing found"));
            assert_eq!(found.kind, format);
            let advice = found.advice().unwrap();
            assert!(
                advice.contains(&format!("a {format} image")) && advice.contains("qemu-img convert -O raw"),
                "{advice}"
            );
        }
        for (start, kind) in [
            (&b"\x1f\x8b\x08\x08"[..], "gzip"),
            (b"\xfd7zXZ\0\0\x04", "xz"),
            (b"\x28\xb5\x2f\xfd\x04", "zstd"),
            (b"BZh91AY&SY", "bzip2"),
            (b"\x04\x22\x4d\x18\x64", "lz4"),
        ] {
            let found = signature(&laid_out(&[(0, start)])).unwrap();
            assert!(found.kind == kind && found.advice().unwrap().contains("decompress it"), "{found:?}");
        }
        let xfs = signature(&laid_out(&[(0, b"XFSB")])).unwrap();
        assert_eq!(xfs.advice(), None);
    }

    #[test]
    fn a_fixed_vhd_is_known_by_its_end() {
        let folder = tempfile::tempdir().unwrap();
        let image = folder.path().join("image");
        for (kind, is_fixed) in [("fixed", true), ("dynamic", false)] {
            let mut qemu_img = Command::new("qemu-img");
            let options = format!("subformat={kind},force_size=on");
            qemu_img.args(["create", "-q", "-f", "vpc", "-o", &options]).arg(&image).arg("16M");
            assert!(qemu_img.status().unwrap_or_else(|error| panic!("qemu-img: {error}")).success());
            let mut bytes = std::fs::read(&image).unwrap();
            assert_eq!(fixed_vhd(&bytes).is_some(), is_fixed, "{kind}");
            // A footer that was written over in part is none.
            let at = bytes.len() - 100;
            bytes[at] ^= 1;
            assert_eq!(fixed_vhd(&bytes), None, "{kind}");
        }
        assert_eq!(fixed_vhd(&vec![0; 100]), None);
    }

    #[test]
    fn a_file_system_that_was_cut_short_is_told_with_both_sizes() {
        for (size, program, args) in [
            (512 << 20, "mkfs.xfs", &["-q"][..]),
            (16 << 20, "mkfs.ext4", &["-q", "-F", "-O", "64bit"]),
            (16 << 20, "mkfs.ext4", &["-q", "-F", "-O", "^64bit", "-b", "1024"]),
            (16 << 20, "mkfs.ext2", &["-q", "-F"]),
        ] {
            let mut bytes = made_by(size, program, args);
            let found = signature(&bytes).unwrap();
            assert_eq!(cut_short(&bytes, &found), None, "{program}");
            bytes.truncate(bytes.len() - 512);
            let said = cut_short(&bytes, &found).unwrap();
            assert!(said.contains(&format!("has {size} bytes")), "{program}: {said}");
            assert!(said.contains(&format!("ends after {}", size - 512)), "{program}: {said}");
        }
        // Sizes that no device has.
        let huge = laid_out(&[(0, b"XFSB\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff")]);
        assert!(cut_short(&huge, &signature(&huge).unwrap()).is_some());
        let odd = laid_out(&[(1024 + 4, &[0xff; 24]), (1024 + 0x38, b"\x53\xef")]);
        assert_eq!(cut_short(&odd, &signature(&odd).unwrap()), None);
    }

    #[test]
    fn nothing_is_found_in_nothing() {
        assert_eq!(signature(&vec![0u8; 1 << 20]), None);
        assert_eq!(signature(&Vec::<u8>::new()), None);
        assert_eq!(signature(&vec![0xffu8; 4096]), None);
    }
}

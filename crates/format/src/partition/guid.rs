//! GUIDs as GPT stores them: the first three groups little-endian, the last two as they are printed.

use std::fmt;
use std::str::FromStr;

/// A GUID in its 16 bytes on disk. Displays in capitals, as sfdisk and sgdisk print it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Guid(pub [u8; 16]);

/// Byte on disk for each byte of the printed form, in order.
const PRINTED: [usize; 16] = [3, 2, 1, 0, 5, 4, 7, 6, 8, 9, 10, 11, 12, 13, 14, 15];

impl Guid {
    /// All zero: an unused entry.
    pub const ZERO: Guid = Guid([0; 16]);

    /// EFI system partition.
    pub const EFI_SYSTEM: Guid = parse_or_panic("C12A7328-F81F-11D2-BA4B-00A0C93EC93B");
    /// Linux file system.
    pub const LINUX: Guid = parse_or_panic("0FC63DAF-8483-4772-8E79-3D69D8477DE4");
    /// Linux LVM physical volume.
    pub const LINUX_LVM: Guid = parse_or_panic("E6D6D379-F507-44C2-A23C-238F2A3DF928");
    /// Linux RAID member.
    pub const LINUX_RAID: Guid = parse_or_panic("A19D880F-05FC-4D3B-A006-743F0F84911E");
    /// Linux swap.
    pub const LINUX_SWAP: Guid = parse_or_panic("0657FD6D-A4AB-43C4-84E5-0933C84B4F4F");

    /// What Linux' tools call this partition type.
    pub fn type_name(self) -> Option<&'static str> {
        TYPES.iter().find(|(guid, _)| *guid == self).map(|(_, name)| *name)
    }
}

const TYPES: &[(Guid, &str)] = &[
    (Guid::EFI_SYSTEM, "EFI System"),
    (Guid::LINUX, "Linux filesystem"),
    (Guid::LINUX_LVM, "Linux LVM"),
    (Guid::LINUX_RAID, "Linux RAID"),
    (Guid::LINUX_SWAP, "Linux swap"),
    (parse_or_panic("21686148-6449-6E6F-744E-656564454649"), "BIOS boot"),
    (parse_or_panic("024DEE41-33E7-11D3-9D69-0008C781F39F"), "MBR partition scheme"),
    (parse_or_panic("EBD0A0A2-B9E5-4433-87C0-68B6B72699C7"), "Microsoft basic data"),
    (parse_or_panic("E3C9E316-0B5C-4DB8-817D-F92DF00215AE"), "Microsoft reserved"),
    (parse_or_panic("DE94BBA4-06D1-4D40-A16A-BFD50179D6AC"), "Windows recovery environment"),
    (parse_or_panic("4F68BCE3-E8CD-4DB1-96E7-FBCAF984B709"), "Linux root (x86-64)"),
    (parse_or_panic("B921B045-1DF0-41C3-AF44-4C6F280D3FAE"), "Linux root (ARM-64)"),
    (parse_or_panic("44479540-F297-41B2-9AF7-D131D5F0458A"), "Linux root (x86)"),
    (parse_or_panic("933AC7E1-2EB4-4F13-B844-0E14E2AEF915"), "Linux home"),
    (parse_or_panic("3B8F8425-20E0-4F3B-907F-1A25A76F98E8"), "Linux server data"),
    (parse_or_panic("4D21B016-B534-45C2-A9FB-5C16E091FD2D"), "Linux variable data"),
    (parse_or_panic("BC13C2FF-59E6-4262-A352-B275FD6F7172"), "Linux extended boot"),
    (parse_or_panic("8DA63339-0007-60C0-C436-083AC8230908"), "Linux reserved"),
    (parse_or_panic("CA7D7CCB-63ED-4C53-861C-1742536059CC"), "Linux LUKS"),
    (parse_or_panic("516E7CB4-6ECF-11D6-8FF8-00022D09712B"), "FreeBSD data"),
    (parse_or_panic("6A898CC3-1DD2-11B2-99A6-080020736631"), "Solaris /usr or Apple ZFS"),
    (parse_or_panic("48465300-0000-11AA-AA11-00306543ECAC"), "Apple HFS/HFS+"),
    (parse_or_panic("7C3457EF-0000-11AA-AA11-00306543ECAC"), "Apple APFS"),
];

impl fmt::Display for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, at) in PRINTED.iter().enumerate() {
            if matches!(i, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{:02X}", self.0[*at])?;
        }
        Ok(())
    }
}

/// The text is not of the form `XXXXXXXX-XXXX-XXXX-XXXX-XXXXXXXXXXXX`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a GUID: expected 32 hexadecimal digits as 8-4-4-4-12")]
pub struct NotAGuid;

impl FromStr for Guid {
    type Err = NotAGuid;

    fn from_str(text: &str) -> Result<Self, NotAGuid> {
        parse(text).ok_or(NotAGuid)
    }
}

const fn parse_or_panic(text: &str) -> Guid {
    match parse(text) {
        Some(guid) => guid,
        None => panic!("not a GUID"),
    }
}

const fn parse(text: &str) -> Option<Guid> {
    let text = text.as_bytes();
    if text.len() != 36 {
        return None;
    }
    let (mut out, mut byte, mut at) = ([0; 16], 0, 0);
    while byte < 16 {
        if matches!(byte, 4 | 6 | 8 | 10) {
            if text[at] != b'-' {
                return None;
            }
            at += 1;
        }
        let (Some(high), Some(low)) = (digit(text[at]), digit(text[at + 1])) else { return None };
        out[PRINTED[byte]] = high << 4 | low;
        at += 2;
        byte += 1;
    }
    Some(Guid(out))
}

const fn digit(c: u8) -> Option<u8> {
    match c {
        b'0'..=b'9' => Some(c - b'0'),
        b'a'..=b'f' => Some(c - b'a' + 10),
        b'A'..=b'F' => Some(c - b'A' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_three_groups_are_little_endian() {
        let esp: Guid = "c12a7328-f81f-11d2-ba4b-00a0c93ec93b".parse().unwrap();
        assert_eq!(esp.0[..8], [0x28, 0x73, 0x2a, 0xc1, 0x1f, 0xf8, 0xd2, 0x11]);
        assert_eq!(esp.to_string(), "C12A7328-F81F-11D2-BA4B-00A0C93EC93B");
        assert_eq!(esp.type_name(), Some("EFI System"));
    }

    #[test]
    fn what_is_not_a_guid_is_refused() {
        for text in ["", "C12A7328-F81F-11D2-BA4B-00A0C93EC93", "C12A7328+F81F-11D2-BA4B-00A0C93EC93B", "é"]
        {
            assert_eq!(text.parse::<Guid>(), Err(NotAGuid), "{text}");
        }
        assert_eq!("G12A7328-F81F-11D2-BA4B-00A0C93EC93B".parse::<Guid>(), Err(NotAGuid));
    }
}

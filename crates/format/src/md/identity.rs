//! Who an array is: UUID, name, and the time of a change.

use std::fmt;
use std::str::FromStr;

use crate::escape;

/// A UUID as mdadm writes it: `9fa43b47:76eb2ada:86114e80:dba62328`, the bytes in the order of 1.x superblocks.
///
/// The four words of a 0.90 superblock are stored big-endian here, so that both are written alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Uuid(pub [u8; 16]);

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, byte) in self.0.iter().enumerate() {
            let colon = if at > 0 && at % 4 == 0 { ":" } else { "" };
            write!(f, "{colon}{byte:02x}")?;
        }
        Ok(())
    }
}

/// Why a text is no UUID.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a UUID of md has 32 hexadecimal digits, with colons or hyphens between them where one likes")]
pub struct NotAUuid;

impl FromStr for Uuid {
    type Err = NotAUuid;

    /// 32 digits; colons, hyphens and dots between them do not count, as for mdadm.
    fn from_str(text: &str) -> Result<Self, NotAUuid> {
        let mut digits = text.chars().filter(|c| !matches!(c, ':' | '-' | '.'));
        let mut out = [0; 16];
        for byte in &mut out {
            for _ in 0..2 {
                let digit = digits.next().and_then(|c| c.to_digit(16)).ok_or(NotAUuid)?;
                *byte = *byte << 4 | u8::try_from(digit).expect("below 16");
            }
        }
        if digits.next().is_some() { Err(NotAUuid) } else { Ok(Uuid(out)) }
    }
}

/// Whether `asked` is what people call the array that has this name (`md/NAME`) and UUID: `md/NAME`, `md:NAME`, or either with the UUID, however
/// that is written.
pub fn is_called(asked: &str, name: &str, uuid: Uuid) -> bool {
    let Some(rest) = asked.strip_prefix("md/").or_else(|| asked.strip_prefix("md:")) else { return false };
    name.strip_prefix("md/") == Some(rest) || rest.parse() == Ok(uuid)
}

/// The name of an array in a 1.x superblock: at most 32 bytes, `homehost:name` or just a name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct SetName(pub [u8; 32]);

/// Why a text cannot be the name of an array.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a name of md has at most 32 bytes and no NUL, and {0:?} has {len} bytes", len = .0.len())]
pub struct NotAName(String);

impl SetName {
    /// The name with zeros behind it.
    ///
    /// # Errors
    ///
    /// Longer than 32 bytes, or with a NUL in it.
    pub fn new(name: &str) -> Result<Self, NotAName> {
        let mut out = [0; 32];
        match out.get_mut(..name.len()) {
            Some(room) if !name.contains('\0') => room.copy_from_slice(name.as_bytes()),
            _ => return Err(NotAName(name.into())),
        }
        Ok(Self(out))
    }

    /// Its bytes up to the first NUL: whatever was there, so [`escape()`] it for printing.
    pub fn as_bytes(&self) -> &[u8] {
        let end = self.0.iter().position(|byte| *byte == 0).unwrap_or(self.0.len());
        &self.0[..end]
    }

    /// What is before the first colon, if there is one.
    pub fn homehost(&self) -> Option<&[u8]> {
        self.split().0
    }

    /// The name without its homehost.
    pub fn without_homehost(&self) -> &[u8] {
        self.split().1
    }

    fn split(&self) -> (Option<&[u8]>, &[u8]) {
        let all = self.as_bytes();
        match all.iter().position(|byte| *byte == b':') {
            Some(colon) => (Some(&all[..colon]), &all[colon + 1..]),
            None => (None, all),
        }
    }
}

impl fmt::Display for SetName {
    /// Escaped.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&escape(&String::from_utf8_lossy(self.as_bytes())))
    }
}

impl fmt::Debug for SetName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SetName(\"{}\")", self.0.escape_ascii())
    }
}

/// A moment in a 1.x superblock: bits 0-39 seconds since 1970, bits 40-63 microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Time(pub u64);

impl Time {
    const SECONDS: u64 = (1 << 40) - 1;

    /// A moment; seconds and microseconds that have no room are cut.
    pub fn new(seconds: u64, microseconds: u32) -> Self {
        Self(seconds & Self::SECONDS | u64::from(microseconds) << 40)
    }

    /// Seconds since 1970.
    pub fn seconds(self) -> u64 {
        self.0 & Self::SECONDS
    }

    /// Microseconds on top.
    pub fn microseconds(self) -> u32 {
        u32::try_from(self.0 >> 40).expect("24 bits")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_is_written_and_read_as_mdadm_does() {
        let text = "9fa43b47:76eb2ada:86114e80:dba62328";
        let uuid: Uuid = text.parse().unwrap();
        assert_eq!(uuid.0[..4], [0x9f, 0xa4, 0x3b, 0x47]);
        assert_eq!(uuid.to_string(), text);
        assert_eq!("9fa43b47-76eb-2ada-8611-4e80dba62328".parse(), Ok(uuid));
        for wrong in ["", "9fa43b47", &format!("{text}0"), &text.replace('9', "g")] {
            assert_eq!(wrong.parse::<Uuid>(), Err(NotAUuid), "{wrong}");
        }
    }

    #[test]
    fn a_name_is_split_at_its_first_colon() {
        let name = SetName::new("host:a:b").unwrap();
        assert_eq!((name.homehost(), name.without_homehost()), (Some(&b"host"[..]), &b"a:b"[..]));
        let name = SetName::new("data").unwrap();
        assert_eq!((name.homehost(), name.without_homehost()), (None, &b"data"[..]));
        assert_eq!(SetName([b'x'; 32]).as_bytes().len(), 32);
        assert!(SetName::new(&"x".repeat(32)).is_ok());
        for wrong in ["x".repeat(33), "a\0b".into()] {
            assert_eq!(SetName::new(&wrong), Err(NotAName(wrong.clone())));
        }
    }

    #[test]
    fn a_name_is_escaped_when_it_is_printed() {
        let printed = SetName::new("a\u{1b}[2J\n").unwrap().to_string();
        assert!(!printed.contains(|c: char| c.is_control()), "{printed:?}");
    }

    #[test]
    fn a_time_has_40_bits_of_seconds_and_24_of_microseconds() {
        let time = Time::new(1_700_000_000, 999_999);
        assert_eq!((time.seconds(), time.microseconds()), (1_700_000_000, 999_999));
        assert_eq!(time.0, 1_700_000_000 | 999_999 << 40);
    }
}

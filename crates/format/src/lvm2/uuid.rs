//! LVM's identifiers of PVs, VGs and LVs: 32 characters, which are printed in groups of 6-4-4-4-4-4-6.

use std::fmt;

/// Characters of a group each, in order.
const GROUPS: [usize; 7] = [6, 4, 4, 4, 4, 4, 6];

/// An identifier. Its 32 characters are of `0-9a-zA-Z!#`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Uuid([u8; 32]);

impl Uuid {
    /// The identifier of these 32 characters without hyphens, as a label holds it; `None` where one is not allowed.
    pub fn from_compact(bytes: &[u8]) -> Option<Self> {
        let bytes: [u8; 32] = bytes.try_into().ok()?;
        let allowed = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'!' | b'#');
        bytes.iter().all(allowed).then_some(Self(bytes))
    }

    /// The identifier of a text with hyphens at the right places, as metadata holds it.
    pub fn from_text(text: &str) -> Option<Self> {
        let mut groups = text.split('-');
        let mut compact = String::with_capacity(32);
        for length in GROUPS {
            let group = groups.next().filter(|group| group.len() == length)?;
            compact.push_str(group);
        }
        groups.next().is_none().then(|| Self::from_compact(compact.as_bytes()))?
    }

    /// A new identifier from 32 random bytes. `!` and `#` are allowed, and in no identifier that LVM makes.
    pub fn from_random(random: [u8; 32]) -> Self {
        const DIGITS: &[u8; 62] = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
        Self(random.map(|byte| DIGITS[usize::from(byte) % DIGITS.len()]))
    }

    /// Its 32 characters without hyphens: what a label holds, and what dm's uuids (`LVM-` VG LV) are made of.
    pub fn compact(&self) -> &str {
        std::str::from_utf8(&self.0).expect("ASCII, as it was checked")
    }

    /// Its 32 bytes.
    pub fn bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.compact();
        for (i, length) in GROUPS.iter().enumerate() {
            let (group, after) = rest.split_at(*length);
            f.write_str(if i == 0 { "" } else { "-" })?;
            f.write_str(group)?;
            rest = after;
        }
        Ok(())
    }
}

impl fmt::Debug for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Uuid({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::Uuid;

    #[test]
    fn a_random_identifier_is_made_of_digits_and_letters() {
        let uuid = Uuid::from_random(std::array::from_fn(|n| u8::try_from(n * 8).unwrap()));
        assert!(uuid.bytes().iter().all(u8::is_ascii_alphanumeric), "{uuid}");
        assert_eq!(Uuid::from_text(&uuid.to_string()), Some(uuid));
        assert_ne!(uuid, Uuid::from_random([0; 32]));
    }

    #[test]
    fn both_spellings_are_the_same_identifier_and_others_are_refused() {
        let text = "4UU62I-PF3w-wvt0-a5Gq-VCPu-ldAo-QEH7JX";
        let uuid = Uuid::from_text(text).unwrap();
        assert_eq!(uuid.compact(), "4UU62IPF3wwvt0a5GqVCPuldAoQEH7JX");
        assert_eq!(uuid.to_string(), text);
        assert_eq!(Uuid::from_compact(uuid.bytes()), Some(uuid));
        for wrong in [
            "",
            "4UU62IPF3wwvt0a5GqVCPuldAoQEH7JX",
            "4UU62I-PF3w-wvt0-a5Gq-VCPu-ldAo-QEH7J",
            "4UU62I-PF3w-wvt0-a5Gq-VCPu-ldAo-QEH7JX-",
            "4UU62-IPF3w-wvt0-a5Gq-VCPu-ldAo-QEH7JX",
            "4UU62I-PF3w-wvt0-a5Gq-VCPu-ldAo-QEH7J\n",
            "4UU62I-PF3w-wvt0-a5Gq-VCPu-ldAo-QEHé7X",
        ] {
            assert_eq!(Uuid::from_text(wrong), None, "{wrong:?}");
        }
    }
}

//! What a device is to its array.

use std::fmt;

const SPARE: u16 = 0xffff;
const FAULTY: u16 = 0xfffe;
const JOURNAL: u16 = 0xfffd;

/// What a device is to its array: an entry of the table of roles.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    /// It holds the data of this place, from 0.
    Active(u16),
    /// It waits for a place.
    Spare,
    /// It failed, or the slot was never used by a device that is known.
    Faulty,
    /// It is the journal of a RAID5 or 6.
    Journal,
}

impl From<u16> for Role {
    fn from(word: u16) -> Self {
        match word {
            SPARE => Role::Spare,
            FAULTY => Role::Faulty,
            JOURNAL => Role::Journal,
            place => Role::Active(place),
        }
    }
}

impl From<Role> for u16 {
    /// # Panics
    ///
    /// A place that stands for something else in a superblock (65,533 and more): [`super::RAID_DISKS_MAX`] is far below.
    fn from(role: Role) -> Self {
        match role {
            Role::Active(place) => {
                assert!(place < JOURNAL, "place {place} of an array cannot be written down");
                place
            }
            Role::Spare => SPARE,
            Role::Faulty => FAULTY,
            Role::Journal => JOURNAL,
        }
    }
}

impl fmt::Display for Role {
    /// As mdadm does: `Active device 0`, `spare`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Role::Active(place) => write!(f, "Active device {place}"),
            Role::Spare => f.write_str("spare"),
            Role::Faulty => f.write_str("faulty"),
            Role::Journal => f.write_str("Journal"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_is_a_role_and_every_role_its_word() {
        for word in 0..=u16::MAX {
            assert_eq!(u16::from(Role::from(word)), word);
        }
        assert_eq!(Role::from(0xfffe), Role::Faulty);
    }
}

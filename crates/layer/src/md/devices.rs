//! The devices of an array, and who of them has which role.
//!
//! Devices are only ever appended: who resolves a bio may hold on to one while it is given up. Which of them has a role, and
//! which is being filled to take that one's place, is one word per role; readers pay a load of it, and take no lock. Words are
//! changed under the array's turn.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use super::member::Member;

/// Most devices that can be added to an array while it is served.
pub(super) const ADDED_MAX: usize = 64;

const NONE: u16 = u16::MAX;

/// Number of a device, in the order in which they came.
pub(super) type DeviceIndex = u16;

/// Who has a role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Holders(u32);

impl Holders {
    pub(super) fn new(member: Option<DeviceIndex>, replacement: Option<DeviceIndex>) -> Holders {
        Holders(u32::from(member.unwrap_or(NONE)) | u32::from(replacement.unwrap_or(NONE)) << 16)
    }

    /// The member, faulty or not.
    #[inline]
    pub(super) fn member(self) -> Option<DeviceIndex> {
        let index = self.0 as u16;
        (index != NONE).then_some(index)
    }

    /// The one that is to take its place.
    #[inline]
    pub(super) fn replacement(self) -> Option<DeviceIndex> {
        let index = (self.0 >> 16) as u16;
        (index != NONE).then_some(index)
    }
}

/// The devices of an array.
#[derive(Debug)]
pub(super) struct Devices {
    roles: Box<[AtomicU32]>,
    all: Box<[OnceLock<Box<Member>>]>,
    count: AtomicUsize,
}

impl Devices {
    /// Devices, and who of them has which role.
    pub(super) fn new(all: Vec<Member>, roles: &[Holders]) -> Devices {
        let count = all.len();
        let room = (count + ADDED_MAX).min(usize::from(NONE));
        let slot =
            |member: Option<Member>| member.map_or_else(OnceLock::new, |it| OnceLock::from(Box::new(it)));
        Devices {
            roles: roles.iter().map(|holders| AtomicU32::new(holders.0)).collect(),
            all: all
                .into_iter()
                .map(Some)
                .chain(std::iter::repeat_with(|| None))
                .take(room)
                .map(slot)
                .collect(),
            count: AtomicUsize::new(count),
        }
    }

    /// Who has a role; nobody has one that there is not.
    #[inline]
    pub(super) fn holders(&self, role: u16) -> Holders {
        let word = self.roles.get(usize::from(role));
        Holders(word.map_or(u32::MAX, |word| word.load(Ordering::Acquire)))
    }

    /// Under the array's turn.
    pub(super) fn set_holders(&self, role: u16, holders: Holders) {
        self.roles[usize::from(role)].store(holders.0, Ordering::Release);
    }

    pub(super) fn roles(&self) -> impl Iterator<Item = (u16, Holders)> {
        (0..).zip(&self.roles).map(|(role, word)| (role, Holders(word.load(Ordering::Acquire))))
    }

    /// A device by its number.
    #[inline]
    pub(super) fn get(&self, index: DeviceIndex) -> Option<&Member> {
        self.all.get(usize::from(index))?.get().map(|member| &**member)
    }

    /// The member of a role, faulty or not.
    #[inline]
    pub(super) fn member(&self, role: u16) -> Option<&Member> {
        self.get(self.holders(role).member()?)
    }

    /// Whether there is room for one more. Under the array's turn, until it is there.
    pub(super) fn have_room(&self) -> bool {
        self.count.load(Ordering::Acquire) < self.all.len()
    }

    /// One more; its number, if there is room. Under the array's turn.
    pub(super) fn add(&self, member: Member) -> Option<DeviceIndex> {
        let count = self.count.load(Ordering::Acquire);
        self.all.get(count)?.set(Box::new(member)).ok()?;
        self.count.store(count + 1, Ordering::Release);
        DeviceIndex::try_from(count).ok()
    }

    /// All that were not removed.
    pub(super) fn all(&self) -> impl Iterator<Item = (DeviceIndex, &Member)> {
        let members = self.all[..self.count.load(Ordering::Acquire)].iter().filter_map(OnceLock::get);
        (0..).zip(members.map(|member| &**member)).filter(|(_, member)| !member.is_removed())
    }

    /// Its role, as a member or as one that is to take a member's place.
    pub(super) fn role_of(&self, index: DeviceIndex) -> Option<u16> {
        let has = |holders: Holders| holders.member() == Some(index) || holders.replacement() == Some(index);
        self.roles().find(|(_, holders)| has(*holders)).map(|(role, _)| role)
    }
}

//! Which devices make up an array: from superblocks alone.
//!
//! As mdadm does at assembly: the most events win; one event behind is as good (a machine may stop between two members'
//! superblocks); whoever is named faulty by the newest is out. Beyond that, contradictions are refused rather than guessed
//! at: a copy of a member beside it, and two halves of an array that were changed apart and have come to the same count. A
//! member of another size is of another array, unless the power went while the array was made larger (`behind`).
//!
//! A device that cannot be a member (it was cut, say) may have an intact superblock all the same: a *witness*. It fills no place, but where it
//! is newer than those that would, and says that they are stale, the array is refused: what they have must not be served, and written to, as if it
//! were the array's.

use std::collections::HashMap;

use blockwork_format::md::v1::{Features, Minor};
use blockwork_format::md::{Access, Role, Superblock, Uuid};
use blockwork_format::{SECTOR_BYTES, escape};

use super::behind::{is_cut_off, same_but_for_size};
use super::{Member, MemberState};
use crate::graph::DeviceId;

/// A device with a superblock.
#[derive(Clone, Copy)]
pub(crate) struct Candidate<'a> {
    pub(crate) device: DeviceId,
    /// What messages call it.
    pub(crate) title: &'a str,
    pub(crate) superblock: &'a Superblock,
    /// Its size.
    pub(crate) sectors: u64,
}

/// What there is of an array.
#[derive(Debug)]
pub(crate) struct Choice {
    pub(crate) truth: Box<Superblock>,
    pub(crate) members: Vec<Member>,
    /// Why nobody can tell what the array holds.
    pub(crate) refusal: Option<String>,
    pub(crate) warnings: Vec<String>,
}

impl Choice {
    /// Whether each place has its member.
    pub(crate) fn is_complete(&self) -> bool {
        let filled = self.members.iter().filter(|member| member.place().is_some()).count();
        filled as u64 == u64::from(self.truth.raid_disks())
    }
}

/// One choice for each array, in the order in which devices name them.
pub(crate) fn choose(candidates: &[Candidate<'_>], witnesses: &[Candidate<'_>]) -> Vec<Choice> {
    let mut order: Vec<Uuid> = Vec::new();
    let mut sets: HashMap<Uuid, Vec<Candidate<'_>>> = HashMap::new();
    for candidate in candidates {
        let set = sets.entry(candidate.superblock.uuid()).or_insert_with_key(|uuid| {
            order.push(*uuid);
            Vec::new()
        });
        set.push(*candidate);
    }
    let of = |uuid: &Uuid| {
        witnesses.iter().filter(|it| it.superblock.uuid() == *uuid).copied().collect::<Vec<_>>()
    };
    order.iter().map(|uuid| choose_one(&sets[uuid], &of(uuid))).collect()
}

fn choose_one(set: &[Candidate<'_>], witnesses: &[Candidate<'_>]) -> Choice {
    let (truth, refusal) = truth(set);
    let mut choice = Choice {
        truth: Box::new(truth.superblock.clone()),
        members: Vec::with_capacity(set.len()),
        refusal,
        warnings: Vec::new(),
    };
    let mut places: HashMap<u16, usize> = HashMap::new();
    for (index, candidate) in set.iter().enumerate() {
        let state = choice.judge(&truth, candidate);
        choice.members.push(Member {
            device: candidate.device,
            events: candidate.superblock.events(),
            state,
        });
        if let Some(place) = choice.members[index].place() {
            match places.get(&place) {
                None => drop(places.insert(place, index)),
                Some(other) => {
                    let winner = choice.settle(set, place, *other, index);
                    places.insert(place, winner);
                }
            }
        }
    }
    if choice.refusal.is_none() {
        let used: Vec<_> =
            set.iter().zip(&choice.members).filter(|(_, member)| member.place().is_some()).collect();
        choice.refusal = witnesses.iter().find_map(|witness| {
            let stale = |(one, _): &&(&Candidate<'_>, &Member)| is_stale(one, &truth, witness);
            used.iter().find(stale).map(|(one, _)| objection(witness, one))
        });
    }
    choice
}

/// Whether a device that would be used is not to be, by what a witness says: as if that were the truth, if it is not older than that.
fn is_stale(one: &Candidate<'_>, truth: &Candidate<'_>, witness: &Candidate<'_>) -> bool {
    let (own, said, known) =
        (one.superblock.events(), witness.superblock.events(), truth.superblock.events());
    matches!(witness.superblock.role(), Role::Active(_))
        && said >= known
        && (own.saturating_add(1) < said
            || !counts_on(witness.superblock, one.superblock)
            || (said > known && !is_of(witness, one)))
}

/// Why an array is refused of which this device is stale, as that witness says.
fn objection(witness: &Candidate<'_>, stale: &Candidate<'_>) -> String {
    let (title, other) = (escape(witness.title), escape(stale.title));
    let what =
        if counts_on(witness.superblock, stale.superblock) { "is out of date" } else { "was given up" };
    let why = witness.superblock.check(witness.sectors).err();
    let why = why.map_or_else(|| "it is damaged".into(), |error| error.to_string());
    let size = match witness.superblock {
        Superblock::V1(own) if own.minor != Minor::V1_0 && own.data().end() > witness.sectors => {
            let bytes = own.data().end().saturating_mul(SECTOR_BYTES);
            format!(
                "give {title} its size again, {bytes} bytes or more (an image file: `truncate -s {bytes} FILE`); or, "
            )
        }
        // The error says what can be done about it.
        _ => String::new(),
    };
    format!(
        "{other} (events {}) {what}, as {title} (events {}) says, which cannot be used ({why}): {other} may lack much of what the array holds; \
         {size}to go on with what {other} has, give the disks without {title}",
        stale.superblock.events(),
        witness.superblock.events()
    )
}

/// The newest superblock that no other one as new has given up; with a refusal where there is none.
fn truth<'a>(set: &[Candidate<'a>]) -> (Candidate<'a>, Option<String>) {
    let is_active = |candidate: &&Candidate<'_>| matches!(candidate.superblock.role(), Role::Active(_));
    let newest = set.iter().filter(is_active).map(|candidate| candidate.superblock.events()).max();
    let Some(newest) = newest else {
        let any = set.iter().rev().max_by_key(|candidate| candidate.superblock.events());
        return (*any.expect("an array has a device"), None);
    };
    let peers: Vec<&Candidate<'_>> =
        set.iter().filter(is_active).filter(|peer| peer.superblock.events() == newest).collect();
    let opponent = |one: &Candidate<'_>| {
        peers.iter().find(|other| {
            let are_of_one = is_of(one, other) || is_of(other, one);
            are_of_one && !counts_on(other.superblock, one.superblock)
        })
    };
    match peers.iter().find(|peer| opponent(peer).is_none()) {
        Some(truth) => (**truth, None),
        None => {
            let first = peers[0];
            let other = opponent(first).expect("each has one");
            let why = format!(
                "{} and {} each say that the other has failed, with the same events ({newest}): the array was split and \
                 both halves were used; give only the disks of the half that is to be kept",
                escape(first.title),
                escape(other.title)
            );
            (*first, Some(why))
        }
    }
}

impl Choice {
    fn judge(&mut self, truth: &Candidate<'_>, candidate: &Candidate<'_>) -> MemberState {
        let (superblock, title) = (candidate.superblock, escape(candidate.title));
        let newest = truth.superblock.events();
        let is_active = matches!(superblock.role(), Role::Active(_));
        if is_active && superblock.events().saturating_add(1) < newest {
            let remedy = match truth.superblock {
                Superblock::V1(truth) if truth.supports(Access::Write).is_ok() => {
                    "`blockwork md add` takes it back (Linux: `mdadm --add`)"
                }
                // Those are only read here.
                _ => "Linux's `mdadm --add` takes it back",
            };
            self.warnings.push(format!(
                "{title} is out of date (events {}, and the array is at {newest}): it is left out; {remedy}",
                superblock.events()
            ));
            return MemberState::OutOfDate;
        }
        if !is_of(truth, candidate) {
            self.warnings.push(format!(
                "{title} has the UUID of this array and another shape ({}, where {} has {}): it is left out",
                shape(superblock),
                escape(truth.title),
                shape(truth.superblock)
            ));
            return MemberState::Foreign;
        }
        let place = match superblock.role() {
            Role::Spare => return MemberState::Spare,
            Role::Journal => return MemberState::Journal,
            Role::Faulty => return MemberState::Faulty,
            Role::Active(place) => place,
        };
        if !counts_on(truth.superblock, superblock) {
            self.warnings
                .push(format!("{title} has failed, as {} says: it is left out", escape(truth.title)));
            return MemberState::Faulty;
        }
        match superblock {
            Superblock::V1(own) if own.features.has(Features::REPLACEMENT) => MemberState::Replacement,
            _ => {
                self.resync_behind(superblock, &title);
                MemberState::InPlace { place }
            }
        }
    }

    /// Tells of a member that knows another size, and that mirrors may differ behind what it knows of.
    fn resync_behind(&mut self, own: &Superblock, title: &str) {
        let (Superblock::V1(truth), Superblock::V1(own)) = (&mut *self.truth, own) else { return };
        if own.member_sectors() == truth.member_sectors() || !truth.level.has_equal_members() {
            return;
        }
        if let (true, Some(end)) = (own.size < truth.size, own.sync_sectors()) {
            truth.resync_offset = truth.resync_offset.min(end);
        }
        self.warnings.push(format!(
            "{title} tells of {} sectors of each member, and the array uses {}: it was stopped while it became larger; its \
             superblocks agree again when it is written to",
            own.size, truth.size
        ));
    }

    /// Two devices for one place: the one with more events stays; of equal ones neither can. Returns who stays.
    fn settle(&mut self, set: &[Candidate<'_>], place: u16, one: usize, other: usize) -> usize {
        let events = |index: usize| set[index].superblock.events();
        let titles = [one, other].map(|index| escape(set[index].title));
        if events(one) == events(other) {
            self.refusal.get_or_insert_with(|| {
                format!(
                    "{} and {} both are member {place}, with the same events: one is a copy of the other; give only one of \
                     the two",
                    titles[0], titles[1]
                )
            });
            self.members[other].state = MemberState::Superseded;
            return one;
        }
        let (stays, goes) = if events(one) > events(other) { (one, other) } else { (other, one) };
        self.warnings.push(format!(
            "{} and {} both are member {place}: {} has more events and is used",
            titles[0],
            titles[1],
            escape(set[stays].title)
        ));
        self.members[goes].state = MemberState::Superseded;
        stays
    }
}

/// Whether `truth` has `other` at the place where that sees itself.
fn counts_on(truth: &Superblock, other: &Superblock) -> bool {
    let seen = match (truth, other) {
        (Superblock::V1(truth), Superblock::V1(other)) => {
            let slot = usize::try_from(other.dev_number).unwrap_or(usize::MAX);
            truth.roles.get(slot).copied()
        }
        (Superblock::V0(truth), Superblock::V0(other)) => {
            let number = other.this_disk.number;
            let disk = truth.disks.iter().find(|disk| disk.number == number && disk.state != 0);
            disk.map(|disk| disk.role(truth.raid_disks))
        }
        (Superblock::V0(_), Superblock::V1(_)) | (Superblock::V1(_), Superblock::V0(_)) => None,
    };
    seen == Some(other.role())
}

/// Whether a device is of the array of which another one has the newest superblock.
fn is_of(truth: &Candidate<'_>, candidate: &Candidate<'_>) -> bool {
    same_shape(truth.superblock, candidate.superblock)
        || is_cut_off(truth.superblock, candidate.superblock, candidate.sectors)
}

/// What all superblocks of an array have in common.
fn same_shape(one: &Superblock, other: &Superblock) -> bool {
    match (one, other) {
        (Superblock::V1(one), Superblock::V1(other)) => {
            // A RAID0 does not use the size of a member.
            let size = !one.level.has_equal_members() || one.size == other.size;
            size && same_but_for_size(one, other)
        }
        (Superblock::V0(one), Superblock::V0(other)) => {
            let words = |s: &blockwork_format::md::v0::Superblock| {
                (s.level, s.layout, s.chunk_bytes, s.raid_disks, s.size_kib, s.ctime)
            };
            words(one) == words(other)
        }
        (Superblock::V0(_), Superblock::V1(_)) | (Superblock::V1(_), Superblock::V0(_)) => false,
    }
}

/// The words that [`same_shape`] compares, for people.
fn shape(superblock: &Superblock) -> String {
    let (layout, chunk, size) = match superblock {
        Superblock::V0(old) => (old.layout, old.chunk_sectors(), old.member_sectors()),
        Superblock::V1(new) => (new.layout, new.chunk_sectors, new.member_sectors()),
    };
    format!(
        "version {}, {} of {} disks, layout {layout:#x}, chunk {chunk} and member {size} sectors, created at {}",
        superblock.version(),
        superblock.level(),
        superblock.raid_disks(),
        superblock.ctime_seconds()
    )
}

//! Which text is true of a group, and which device is which of its physical volumes.
//!
//! Pure: from what devices say of themselves to a [`Choice`] for each group, without opening or building anything.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use blockwork_format::escape;
use blockwork_format::lvm2::Uuid;
use blockwork_format::lvm2::vg::{Pv as PvText, VolumeGroup};

use super::metadata::NotUnderstood;
use super::pv::{Area, Pv};
use crate::graph::DeviceId;

/// A device that says that it is a physical volume.
#[derive(Clone, Copy)]
pub(crate) struct Candidate<'a> {
    pub(crate) device: DeviceId,
    /// What messages call it.
    pub(crate) title: &'a str,
    pub(crate) pv: &'a Pv,
}

/// What there is of a group.
#[derive(Debug)]
pub(crate) struct Choice {
    pub(crate) text: Arc<VolumeGroup>,
    /// Of each of its physical volumes: the device, or why there is none.
    pub(crate) pvs: Vec<Result<DeviceId, String>>,
    /// Devices that have been dealt with: used, older, or duplicates.
    pub(crate) taken: HashSet<DeviceId>,
    pub(crate) read_only: Option<String>,
    /// Why nothing of it can be believed.
    pub(crate) refusal: Option<String>,
    pub(crate) warnings: Vec<String>,
}

impl Choice {
    /// Whether nothing is missing that could still be found.
    pub(crate) fn is_complete(&self) -> bool {
        self.pvs.iter().all(Result::is_ok)
    }
}

/// One choice for each group of which there is a text, in the order in which devices name them.
pub(crate) fn choose(candidates: &[Candidate<'_>]) -> Vec<Choice> {
    let mut groups: Vec<Uuid> = Vec::new();
    let mut texts: HashMap<Uuid, Vec<(Candidate<'_>, &Arc<VolumeGroup>)>> = HashMap::new();
    let mut by_id: HashMap<Uuid, Vec<Candidate<'_>>> = HashMap::new();
    for candidate in candidates {
        by_id.entry(candidate.pv.label.pv.id).or_default().push(*candidate);
        for text in candidate.pv.texts() {
            let of_group = texts.entry(text.id).or_insert_with(|| {
                groups.push(text.id);
                Vec::new()
            });
            of_group.push((*candidate, text));
        }
    }
    groups.iter().map(|id| choose_one(&texts[id], &by_id)).collect()
}

fn choose_one(
    texts: &[(Candidate<'_>, &Arc<VolumeGroup>)],
    by_id: &HashMap<Uuid, Vec<Candidate<'_>>>,
) -> Choice {
    // Of equal ones the first, as devices are given.
    let (first, text) = texts.iter().rev().max_by_key(|(_, text)| text.seqno).expect("a group has a text");
    let mut choice = Choice {
        text: (*text).clone(),
        pvs: Vec::with_capacity(text.pvs.len()),
        taken: HashSet::new(),
        read_only: None,
        refusal: None,
        warnings: Vec::new(),
    };
    choice.compare_texts(first.title, texts);
    if let Some(error) = &text.repeated {
        choice.warnings.push(format!("the metadata on {}: {error}", escape(first.title)));
    }
    for pv in &text.pvs {
        let found = by_id.get(&pv.id).map_or(&[][..], Vec::as_slice);
        let found = choice.find_pv(pv, found);
        choice.pvs.push(found);
    }
    choice.read_only = read_only(text);
    for pv in &text.pvs {
        for candidate in by_id.get(&pv.id).into_iter().flatten() {
            choice.tell_problems(first.title, candidate);
        }
    }
    choice
}

impl Choice {
    /// Tells older copies, and copies with the same number that say something else.
    fn compare_texts(&mut self, newest: &str, texts: &[(Candidate<'_>, &Arc<VolumeGroup>)]) {
        for (candidate, text) in texts {
            let title = escape(candidate.title);
            if text.seqno < self.text.seqno {
                self.warnings.push(format!(
                    "the metadata on {title} is older (seqno {}) than the one on {} (seqno {}), which is used",
                    text.seqno,
                    escape(newest),
                    self.text.seqno
                ));
            } else if !Arc::ptr_eq(text, &self.text) && ***text != *self.text {
                self.refusal = Some(format!(
                    "{} and {title} have different metadata with the same seqno {}: the group was changed on each of two \
                     machines while it was split; keep one side: give only the disks of that one",
                    escape(newest),
                    text.seqno
                ));
            }
            let is_listed = self.text.pv(&candidate.pv.label.pv.id).is_some();
            if !is_listed && self.is_own(candidate) {
                self.taken.insert(candidate.device);
                self.warnings.push(format!("{title} does not belong to the group any more; it is left out"));
            }
        }
    }

    /// Whether what the device says last of itself is that it belongs to this group.
    fn is_own(&self, candidate: &Candidate<'_>) -> bool {
        candidate.pv.newest().is_none_or(|text| text.id == self.text.id)
    }

    fn find_pv(&mut self, pv: &PvText, found: &[Candidate<'_>]) -> Result<DeviceId, String> {
        let what = format!("the physical volume {} ({})", escape(&pv.name), pv.id);
        let (own, others): (Vec<&Candidate<'_>>, Vec<&Candidate<'_>>) =
            found.iter().partition(|found| self.is_own(found));
        self.taken.extend(own.iter().map(|found| found.device));
        match own[..] {
            [] => match others.first() {
                Some(other) => {
                    Err(format!("{what} belongs to another group now, as {} says", escape(other.title)))
                }
                None => Err(format!("{what} is missing{}", last_seen(pv))),
            },
            [only] if pv.missing() => Err(format!(
                "{what} was missing when the group was changed last, and may be out of date on {}; \
                 `vgextend --restoremissing` takes it back",
                escape(only.title)
            )),
            [only] => Ok(only.device),
            [first, second, ..] => Err(format!(
                "{what} is on {} and on {}: give only one of the two",
                escape(first.title),
                escape(second.title)
            )),
        }
    }

    /// Tells damaged copies of the metadata, and which one was used instead.
    fn tell_problems(&mut self, newest: &str, candidate: &Candidate<'_>) {
        if !self.is_own(candidate) {
            return;
        }
        let title = escape(candidate.title);
        for area in &candidate.pv.areas {
            let error = match area {
                Area::Damaged(error) => error,
                Area::Refused(refused) => {
                    let NotUnderstood { error, seqno } = &**refused;
                    let why = format!("the metadata on {title} is not understood ({error})");
                    if seqno.is_none_or(|seqno| seqno >= self.text.seqno) {
                        // By an older text a volume would be read where another one is by now.
                        self.refusal.get_or_insert(format!(
                            "{why}, and by its number{} is not older than what {} has (seqno {}): that is not used, since volumes may \
                             lie elsewhere by now; serve the group where its metadata is understood",
                            seqno.map_or(String::new(), |seqno| format!(" ({seqno})")),
                            escape(newest),
                            self.text.seqno
                        ));
                        continue;
                    }
                    // Whoever wrote it may have changed more than its copies tell.
                    self.read_only.get_or_insert(why);
                    error
                }
                Area::Empty | Area::Ignored | Area::Text(_) => continue,
            };
            let (newest, seqno) = (escape(newest), self.text.seqno);
            self.warnings.push(format!("{title}: {error}; the copy on {newest} (seqno {seqno}) was used"));
        }
    }
}

fn last_seen(pv: &PvText) -> String {
    pv.device_hint.as_ref().map_or(String::new(), |hint| format!(" (it was {} once)", escape(hint)))
}

/// Why a group must not be written, by what its metadata says.
fn read_only(vg: &VolumeGroup) -> Option<String> {
    if vg.flags.has("EXPORTED") {
        return Some("the group is exported; `vgimport` takes it back into use".into());
    }
    if let Some(owner) = vg.system_id.as_ref().filter(|owner| !owner.is_empty()) {
        return Some(format!(
            "the group belongs to the host with the system ID {}; `vgchange --systemid ''` there gives it up, or, where that host is \
             no more, on one that has this ID among the extra_system_ids of its lvmlocal.conf (lvmsystemid(7) says how)",
            escape(owner)
        ));
    }
    if let Some(lock) = vg.lock_type.as_ref().filter(|lock| !matches!(lock.as_str(), "" | "none")) {
        return Some(format!("the group is shared between hosts (lock type {})", escape(lock)));
    }
    if vg.flags.has("CLUSTERED") || vg.flags.has("SHARED") {
        return Some("the group is shared between hosts".into());
    }
    if !vg.flags.has("WRITE") && vg.flags.has("READ") {
        return Some("the group's metadata does not allow writing".into());
    }
    let (place, flag) = vg.unknown_status().into_iter().next()?;
    Some(format!(
        "its metadata has the flag {} in {}, which is not known here",
        escape(&flag),
        escape(&place)
    ))
}

//! Rounds of assembling: what is found makes up devices, which are looked at in turn.
//!
//! In each round: devices are looked at, with their partitions; arrays and groups of which everything is there are
//! assembled. When a round has brought nothing new, those follow of which something is missing. So an array is degraded only
//! if its member is nowhere, not on an array that comes later; and a device can only become part of what is assembled
//! after it: nothing is ever made of itself, whatever an image claims.
//!
//! Logical volumes are looked into last, and only if somebody wants that: they may be the disks of other machines,
//! which then cannot take the place of anything that belongs to this one. Of these, snapshots come behind their origins: what both hold is
//! the same by its identifiers, and the origin's is the one that is meant.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use blockwork_format::escape;
use blockwork_format::lvm2::vg::{LvIndex, SegmentType, VolumeGroup};
use blockwork_format::md;

use crate::assembly::Assembly;
use crate::graph::{Content, DeviceId, DeviceKind, GroupId, NewDevice, Stack};
use crate::lvm::choose::Choice as GroupChoice;
use crate::lvm::verdict::Verdicts;
use crate::lvm::{Group, Pv};
use crate::probe::LOOKS;
use crate::{lvm, md as arrays};

/// What is assembled in a step.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    /// What is complete.
    Complete,
    /// What is not as well.
    All,
}

impl Assembly {
    /// Assembles until nothing new is found.
    pub(crate) fn settle(&mut self) {
        loop {
            self.settle_what_is_complete();
            // An array that lacks a member may hold what a group lacks: one after the other.
            if !self.assemble_arrays(Step::All) && !self.assemble_groups(Step::All) {
                return;
            }
        }
    }

    /// The same of what lacks nothing.
    fn settle_what_is_complete(&mut self) {
        loop {
            while !self.unprobed.is_empty() {
                for id in std::mem::take(&mut self.unprobed) {
                    self.look_at(id);
                }
            }
            if !(self.assemble_arrays(Step::Complete) | self.assemble_groups(Step::Complete)) {
                return;
            }
        }
    }

    /// Looks into all logical volumes, and into those that are found in them.
    pub(crate) fn look_into_volumes(&mut self) {
        loop {
            let unprobed = self.graph.iter().filter(|(_, device)| {
                device.is_offered
                    && matches!(device.kind, DeviceKind::Lv { .. })
                    && matches!(device.content, Content::Unprobed)
                    && device.refusal().is_none()
            });
            let unprobed: BTreeSet<DeviceId> = unprobed.map(|(id, _)| id).collect();
            if unprobed.is_empty() {
                return;
            }
            let waits = |id: DeviceId| self.origin_of(id).is_some_and(|origin| unprobed.contains(&origin));
            let mut next: Vec<DeviceId> = unprobed.iter().copied().filter(|id| !waits(*id)).collect();
            if next.is_empty() {
                next.extend(&unprobed); // origins in a circle
            }
            for id in &next {
                // One that cannot be built says so by itself, and is not asked again.
                if self.layer(*id).is_ok() {
                    self.look_at(*id);
                }
            }
            // What lacks something now may have it on a snapshot.
            if next.len() < unprobed.len() { self.settle_what_is_complete() } else { self.settle() }
        }
    }

    /// The volume of which a logical volume is a snapshot, if that is there.
    fn origin_of(&self, id: DeviceId) -> Option<DeviceId> {
        let DeviceKind::Lv { group, lv } = self.graph.device(id).kind else { return None };
        let group = &self.graph.groups[group.0];
        let origin = match group.text.lvs[lv.0].segments.first()?.kind {
            SegmentType::Thin { origin, .. } => origin,
            _ => group.kin.origin_of(lv),
        };
        group.lvs[origin.filter(|origin| *origin != lv)?.0]
    }

    fn look_at(&mut self, id: DeviceId) {
        self.probe(id);
        match &self.graph.device(id).content {
            Content::MdMember(_) => self.loose_members.push(id),
            Content::Pv(_) => self.loose_pvs.push(id),
            Content::Unprobed => self.graph.devices[id.0].content = Content::Nothing,
            _ => {}
        }
    }

    fn assemble_arrays(&mut self, step: Step) -> bool {
        self.turn_late_members_away();
        if step == Step::All {
            self.read_members_at_one_time();
        }
        let mut members = self.loose_members.clone();
        members.sort_unstable();
        let candidates: Vec<_> = members.iter().filter_map(|id| self.array_candidate(*id)).collect();
        let witnesses: Vec<_> = self.graph.iter().filter_map(|(id, _)| self.array_witness(id)).collect();
        let choices = arrays::choose::choose(&candidates, &witnesses);
        let chosen: Vec<_> =
            choices.into_iter().filter(|choice| step == Step::All || choice.is_complete()).collect();
        let any = !chosen.is_empty();
        for choice in chosen {
            let gone: HashSet<DeviceId> = choice.members.iter().map(|member| member.device).collect();
            self.loose_members.retain(|id| !gone.contains(id));
            self.assemble_array(choice);
        }
        any
    }

    /// Reads the superblocks of members again until two looks find the same. Another process that has the array may change them
    /// between the look at one member and that at the next: a set which no moment had would seem to lack members.
    fn read_members_at_one_time(&mut self) {
        for _ in 0..LOOKS {
            let mut is_changing = false;
            for id in self.loose_members.clone() {
                let device = self.graph.device(id);
                let (Content::MdMember(before), Some(layer)) = (&device.content, device.layer()) else {
                    continue;
                };
                let (before, layer) = (before.clone(), layer.clone());
                let now = self.read(&*layer, |source| md::find(source).newest().cloned());
                // None, or not to be believed: half of it was written.
                is_changing |= now.as_ref() != Some(&*before);
                if let Some(now) = now.filter(|now| now.uuid() == before.uuid()) {
                    self.graph.devices[id.0].content = Content::MdMember(Box::new(now));
                }
            }
            if !is_changing {
                return;
            }
        }
    }

    fn array_candidate(&self, id: DeviceId) -> Option<arrays::choose::Candidate<'_>> {
        let device = self.graph.device(id);
        match &device.content {
            Content::MdMember(superblock) => {
                let sectors = device.sectors.0;
                Some(arrays::choose::Candidate { device: id, title: device.title(), superblock, sectors })
            }
            _ => None,
        }
    }

    /// A device that cannot be a member, and knows of others that are.
    fn array_witness(&self, id: DeviceId) -> Option<arrays::choose::Candidate<'_>> {
        let device = self.graph.device(id);
        let Content::DamagedMember(Some(superblock)) = &device.content else { return None };
        let sectors = device.sectors.0;
        Some(arrays::choose::Candidate { device: id, title: device.title(), superblock, sectors })
    }

    /// Members of arrays that have been assembled before they were found.
    fn turn_late_members_away(&mut self) {
        let known: HashSet<md::Uuid> = self.graph.arrays.iter().map(|array| array.truth.uuid()).collect();
        let late = |superblock: &md::Superblock| known.contains(&superblock.uuid());
        for id in std::mem::take(&mut self.loose_members) {
            match &self.graph.device(id).content {
                Content::MdMember(superblock) if late(superblock) => {
                    let uuid = superblock.uuid();
                    let array = self.graph.arrays.iter().find(|array| array.truth.uuid() == uuid);
                    let name = escape(&array.expect("it is known").name);
                    self.graph.warn(
                        id,
                        format!("it claims to be a member of {name}, which has been assembled without it: it is left out"),
                    );
                }
                _ => self.loose_members.push(id),
            }
        }
    }

    fn assemble_groups(&mut self, step: Step) -> bool {
        self.turn_late_pvs_away();
        let mut pvs = self.loose_pvs.clone();
        pvs.sort_unstable();
        let candidates: Vec<_> = pvs.iter().filter_map(|id| self.group_candidate(*id)).collect();
        let choices = lvm::choose::choose(&candidates);
        let chosen: Vec<_> =
            choices.into_iter().filter(|choice| step == Step::All || choice.is_complete()).collect();
        let any = !chosen.is_empty();
        for choice in chosen {
            self.loose_pvs.retain(|id| !choice.taken.contains(id));
            self.add_group(choice);
        }
        any
    }

    fn group_candidate(&self, id: DeviceId) -> Option<lvm::choose::Candidate<'_>> {
        let device = self.graph.device(id);
        match &device.content {
            Content::Pv(pv) => Some(lvm::choose::Candidate { device: id, title: device.title(), pv }),
            _ => None,
        }
    }

    /// Physical volumes of groups that have been assembled before they were found.
    fn turn_late_pvs_away(&mut self) {
        for id in std::mem::take(&mut self.loose_pvs) {
            let Content::Pv(pv) = &self.graph.device(id).content else { continue };
            match self.graph.groups.iter().find(|group| claims(group, pv)) {
                Some(group) => {
                    let name = escape(&group.name);
                    self.graph.warn(
                        id,
                        format!("it claims to belong to {name}, which has been assembled without it: it is left out"),
                    );
                }
                None => self.loose_pvs.push(id),
            }
        }
    }

    /// What is known of a group becomes devices: one for each logical volume, whose layers are built when they are asked
    /// for.
    fn add_group(&mut self, choice: GroupChoice) {
        let GroupChoice { text, pvs, read_only, refusal, mut warnings, .. } = choice;
        let name = self.group_name(&text);
        if name != text.name {
            warnings.push(format!(
                "another group has the name {} as well; this one's UUID is {}",
                escape(&text.name),
                text.id
            ));
        }
        let missing = pvs.iter().filter_map(|pv| pv.as_ref().err());
        warnings.extend(missing.cloned());
        warnings.extend(refusal.iter().map(|why| format!("it is not assembled: {why}")));
        let kin = Arc::new(lvm::Families::of(&text));
        let group = GroupId(self.graph.groups.len());
        let lvs = vec![None; text.lvs.len()];
        let refused = refusal.clone();
        self.graph.groups.push(Group {
            name,
            text: text.clone(),
            kin: kin.clone(),
            pvs,
            lvs,
            thin_pools: BTreeMap::new(),
            snapshots: HashMap::new(),
            families: HashMap::new(),
            arrays: HashMap::new(),
            merges: HashMap::new(),
            refused,
            read_only,
            warnings,
        });
        self.add_volumes(group, &text, &kin, refusal.as_ref());
        if refusal.is_none() {
            self.open_thin_pools(group, &text);
        }
    }

    fn add_volumes(
        &mut self,
        group: GroupId,
        text: &VolumeGroup,
        kin: &lvm::Families,
        refusal: Option<&String>,
    ) {
        let visible = text.visible();
        let (verdicts, mut shared) = (Verdicts::new(text), lvm::Shared::new());
        for lv in in_order(text, kin) {
            if !verdicts.is_tie(lv) {
                let below = self.graph.groups[group.0].below(lv, &mut shared);
                self.add_volume(group, &verdicts, lv, below, visible[lv.0], refusal);
            }
        }
    }

    /// Makes a device of a logical volume; those `below`, which it is made of, are devices already.
    pub(crate) fn add_volume(
        &mut self,
        group: GroupId,
        verdicts: &Verdicts<'_>,
        lv: LvIndex,
        below: Arc<[DeviceId]>,
        is_offered: bool,
        refusal: Option<&String>,
    ) -> DeviceId {
        let known = &self.graph.groups[group.0];
        let name = format!("{}/{}", known.name, known.text.lvs[lv.0].name);
        let read_only = known.read_only.clone().or_else(|| verdicts.read_only(lv));
        let stack = match refusal.cloned().or_else(|| verdicts.refusal(lv)) {
            Some(why) => Stack::Refused(why),
            None => Stack::Unbuilt,
        };
        let device = self.graph.add(NewDevice {
            name: self.graph.unused_name(&name),
            kind: DeviceKind::Lv { group, lv },
            sectors: blockwork_engine::Sectors(verdicts.sectors(lv)),
            below,
            stack,
            is_offered,
            read_only,
        });
        self.graph.groups[group.0].lvs[lv.0] = Some(device);
        device
    }

    /// A name that no group has yet.
    fn group_name(&self, text: &VolumeGroup) -> String {
        let taken = |name: &str| self.graph.groups.iter().any(|group| group.name == name);
        if !taken(&text.name) {
            return text.name.clone();
        }
        let id = text.id.to_string();
        let with_id = format!("{}#{}", text.name, &id[..6]);
        if taken(&with_id) { format!("{}#{id}", text.name) } else { with_id }
    }

    /// Devices that belong to something of which there is no other trace.
    pub(crate) fn tell_what_is_left(&mut self) {
        for id in std::mem::take(&mut self.loose_pvs) {
            let Content::Pv(pv) = &self.graph.device(id).content else { continue };
            let mut warnings: Vec<String> = pv.problems().map(ToString::to_string).collect();
            warnings.extend(pv.of_unknown_group());
            self.graph.devices[id.0].warnings.extend(warnings);
        }
    }
}

/// Whether a group that was assembled has to do with a physical volume.
pub(crate) fn claims(group: &Group, pv: &Pv) -> bool {
    let own = pv.newest().map(|text| text.id);
    own.map_or_else(|| group.text.pv(&pv.label.pv.id).is_some(), |own| own == group.text.id)
}

/// The logical volumes of a group, each after those that it is made of.
pub(crate) fn in_order(text: &VolumeGroup, kin: &lvm::Families) -> Vec<LvIndex> {
    let mut order = Vec::with_capacity(text.lvs.len());
    let mut seen = vec![false; text.lvs.len()];
    let mut seen_families = HashSet::new();
    for first in 0..text.lvs.len() {
        // (volume, whether those below it are in the order already)
        let mut left = vec![(LvIndex(first), false)];
        while let Some((lv, below_is_done)) = left.pop() {
            if below_is_done {
                order.push(lv);
            } else if !std::mem::replace(&mut seen[lv.0], true) {
                left.push((lv, true));
                // What one of a family is made of, all are: whoever comes next finds that in the order.
                if kin.origin_of(lv).is_some_and(|origin| !seen_families.insert(origin)) {
                    continue;
                }
                let family = kin.family_of(lv);
                let below = family.iter().flat_map(|lv| lvm::lvs_below(text, *lv));
                left.extend(below.map(|below| (below, false)));
            }
        }
    }
    order
}

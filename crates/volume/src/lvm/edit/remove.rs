//! Volumes that go, and volumes that get another name: with their parts, and with whatever names them.

use std::collections::BTreeMap;

use blockwork_format::escape;
use blockwork_format::lvm2::vg::{Area, LvIndex, SegmentType, Snapshot};
use blockwork_format::lvm2::{Node, Section, Value};

use super::draft::{Draft, lv_list, shown};
use super::error::EditError;
use crate::lvm::lvs_below;

/// Keys of a segment (or of a message in it) that hold an LV's name.
const KEYS_OF_A_NAME: &[&str] = &[
    "origin",
    "cow_store",
    "merging_store",
    "metadata",
    "pool",
    "thin_pool",
    "external_origin",
    "merge",
    "data",
    "cache_pool",
    "writecache",
    "mirror_log",
    "create",
];

/// Keys of a segment that hold a list with LVs' names in it.
const KEYS_OF_NAMES: &[&str] = &["stripes", "mirrors", "raids", "raid0_lvs"];

impl Draft {
    /// Takes volumes out of the group, snapshots before what may be their origins, in whatever order they are named.
    ///
    /// # Errors
    ///
    /// As [`Draft::remove_volume`]; or none is named, or one twice.
    pub fn remove_volumes(&mut self, names: &[String]) -> Result<(), EditError> {
        let wrong = |found: &str, expected: &str| {
            let (found, expected) = (found.to_owned(), expected.to_owned());
            Err(EditError::Value { what: "the volumes to be removed:", found, expected })
        };
        if names.is_empty() {
            return wrong("none", "one at least");
        }
        if let Some((_, name)) = names.iter().enumerate().find(|&(at, name)| names[..at].contains(name)) {
            return wrong(&format!("{} twice", escape(name)), "each once");
        }
        let is_snapshot =
            |name: &&String| self.group().lv(name).is_some_and(|lv| self.snapshot_of_store(lv).is_some());
        let (snapshots, others): (Vec<&String>, Vec<&String>) = names.iter().partition(is_snapshot);
        snapshots.into_iter().chain(others).try_for_each(|name| self.remove_volume(name).map(drop))
    }

    /// Takes a volume out of the group, with its parts; a snapshot with its store. The names of all that is gone.
    ///
    /// # Errors
    ///
    /// No such volume; others need it, such as its snapshots; or a kind of volume that is not removed here.
    pub fn remove_volume(&mut self, name: &str) -> Result<Vec<String>, EditError> {
        let is_merging = |lv: LvIndex| self.snapshot_of_store(lv).is_some_and(|snapshot| snapshot.merging);
        if self.group().lv(name).is_some_and(is_merging) {
            let why = "it is being merged into its origin, which is nothing without it; `blockwork lv merge` finishes that";
            return Err(EditError::volume(name, why));
        }
        let lv = self.visible(name)?;
        self.check_not_split_off(lv)?;
        let mut gone = vec![lv];
        if let Some(snapshot) = self.snapshot_of_store(lv) {
            gone.push(snapshot.tie);
            gone.extend(self.origin_of_its_own(&snapshot));
        }
        self.check_not_needed(lv, &gone)?;
        self.check_no_thin_merge(lv)?;
        self.check_not_in_history(name)?;
        self.collect_parts(lv, &mut gone)?;
        if let SegmentType::Thin { pool, device_id, .. } = self.group().lvs[lv.0].segments[0].kind {
            self.leave_pool(name, pool, device_id)?;
        }
        self.take_out(&gone)
    }

    /// Takes LVs out of the group, and the spare that no pool needs then; their names.
    pub(super) fn take_out(&mut self, gone: &[LvIndex]) -> Result<Vec<String>, EditError> {
        let mut names: Vec<String> = gone.iter().map(|lv| self.group().lvs[lv.0].name.clone()).collect();
        self.change(|vg, _| {
            let list = lv_list(vg);
            for name in &names {
                list.remove(name);
            }
            Ok(())
        })?;
        names.extend(self.drop_needless_spare()?);
        self.change(|vg, _| {
            // LVM has no such section where there are no volumes.
            if lv_list(vg).entries.is_empty() {
                vg.remove("logical_volumes");
            }
            Ok(())
        })?;
        Ok(names)
    }

    /// Gives a volume another name, and its parts names to go with it.
    ///
    /// # Errors
    ///
    /// No such volume, a name that cannot be, or something that is not known here may name the volume.
    pub fn rename_volume(&mut self, old: &str, new: &str) -> Result<(), EditError> {
        let lv = self.visible(old)?;
        self.check_not_split_off(lv)?;
        self.check_new_name(new)?;
        self.check_names_are_known(old, "lvrename")?;
        let names = self.renamed(lv, old, new);
        let mut parts = names.keys().filter_map(|name| self.group().lv(name));
        parts.try_for_each(|part| self.check_no_split_image(part))?;
        if let Some(taken) = names.values().find(|name| self.group().lv(name).is_some()) {
            return Err(EditError::Exists { what: "the logical volume", name: taken.clone() });
        }
        self.change(|vg, old_vg| {
            let pvs: Vec<&str> = old_vg.pvs.iter().map(|pv| pv.name.as_str()).collect();
            let list = lv_list(vg);
            for entry in &mut list.entries {
                if let Node::Section(lv) = &mut entry.node {
                    for segment in &mut lv.entries {
                        if let Node::Section(segment) = &mut segment.node {
                            replace_names(segment, &names, &pvs);
                        }
                    }
                }
            }
            for (old, new) in &names {
                list.rename(old, new);
            }
            Ok(())
        })
    }

    fn snapshot_of_store(&self, lv: LvIndex) -> Option<Snapshot> {
        self.group().snapshot_in(lv)
    }

    /// The zeros behind a snapshot, where these were made for it, and nobody sees them: they go where it goes.
    fn origin_of_its_own(&self, snapshot: &Snapshot) -> Option<LvIndex> {
        let vg = self.group();
        let is_shared = |other: Snapshot| other.origin == snapshot.origin && other.store != snapshot.store;
        let is_its_own = vg.has_virtual_origin(snapshot)
            && !vg.lvs[snapshot.origin.0].flags.has("VISIBLE")
            && !vg.snapshots().any(is_shared);
        is_its_own.then_some(snapshot.origin)
    }

    /// Nobody but what goes with it may be made of it.
    pub(super) fn check_not_needed(&self, lv: LvIndex, gone: &[LvIndex]) -> Result<(), EditError> {
        let vg = self.group();
        let name = &vg.lvs[lv.0].name;
        let of = |snapshot: &Snapshot| snapshot.origin == lv;
        let snapshots =
            shown(vg.snapshots().filter(of).map(|snapshot| vg.lvs[snapshot.store.0].name.clone()));
        if !snapshots.is_empty() {
            let why = format!(
                "it is the origin of these snapshots, which are nothing without it: {snapshots}; remove them first"
            );
            return Err(EditError::volume(name, why));
        }
        let needs =
            |other: &usize| !gone.contains(&LvIndex(*other)) && lvs_below(vg, LvIndex(*other)).contains(&lv);
        let others = shown((0..vg.lvs.len()).filter(needs).map(|other| vg.lvs[other].name.clone()));
        if !others.is_empty() {
            return Err(EditError::volume(name, format!("these volumes are made of it: {others}")));
        }
        Ok(())
    }

    /// What is gone may be remembered as a snapshot of it, or as its origin. LVM reads no group whose history names a volume that is not there.
    fn check_not_in_history(&self, name: &str) -> Result<(), EditError> {
        let is_it = |value: &Value| value.as_str() == Some(name);
        let names_it = |node: &Node| match node {
            Node::Value(value) => is_it(value),
            Node::Array(values) => values.iter().any(is_it),
            Node::Section(_) => false,
        };
        let relative = self.history().into_iter().flat_map(|gone| &gone.entries).find(|entry| {
            let of = |key: &str| entry.node.as_section().and_then(|gone| gone.get(key));
            ["origin", "descendants"].into_iter().filter_map(of).any(names_it)
        });
        relative.map_or(Ok(()), |gone| {
            let gone = escape(&gone.key);
            let why = format!(
                "the history of the group's volumes names it, beside {gone}, which is gone: use `lvremove`"
            );
            Err(EditError::volume(name, why))
        })
    }

    /// What a volume is made of, and nobody sees; or sees only until it is put back.
    pub(super) fn collect_parts(&self, lv: LvIndex, gone: &mut Vec<LvIndex>) -> Result<(), EditError> {
        let vg = self.group();
        for segment in &vg.lvs[lv.0].segments {
            let known = matches!(
                segment.kind,
                SegmentType::Linear(_)
                    | SegmentType::Striped { .. }
                    | SegmentType::Raid { .. }
                    | SegmentType::Mirror { .. }
                    | SegmentType::Error
                    | SegmentType::Zero
                    | SegmentType::ThinPool { .. }
                    | SegmentType::Thin { merge: None, .. }
            );
            if !known {
                let why = format!(
                    "{} is of type {}, which is not removed here: use `lvremove`",
                    escape(&vg.lvs[lv.0].name),
                    escape(&segment.type_name)
                );
                return Err(EditError::volume(&vg.lvs[gone[0].0].name, why));
            }
            let areas = segment.areas().0.iter().filter_map(|area| match area {
                Area::Lv { lv, .. } => Some(*lv),
                Area::Pv { .. } => None,
            });
            for part in areas.chain(segment.kind.whole_lvs()) {
                let is_seen = vg.lvs[part.0].flags.has("VISIBLE") && vg.split_off(part).is_none();
                if !gone.contains(&part) && !is_seen {
                    gone.push(part);
                    self.collect_parts(part, gone)?;
                }
            }
        }
        Ok(())
    }

    /// The new names of a volume and of its parts whose names begin with its own.
    fn renamed(&self, lv: LvIndex, old: &str, new: &str) -> BTreeMap<String, String> {
        let vg = self.group();
        let mut names = BTreeMap::from([(old.to_owned(), new.to_owned())]);
        let mut left = lvs_below(vg, lv);
        left.extend(self.snapshot_of_store(lv).and_then(|snapshot| self.origin_of_its_own(&snapshot)));
        while let Some(part) = left.pop() {
            let name = &vg.lvs[part.0].name;
            let rest = name.strip_prefix(old).filter(|rest| rest.starts_with('_'));
            if let Some(rest) = rest.filter(|_| !vg.lvs[part.0].flags.has("VISIBLE")) {
                names.insert(name.clone(), format!("{new}{rest}"));
                left.extend(lvs_below(vg, part));
            }
        }
        names
    }

    /// Types and sections that are not known here may have names where nobody looks for them: `tool` of LVM's does.
    pub(super) fn check_names_are_known(&self, name: &str, tool: &str) -> Result<(), EditError> {
        let vg = self.group();
        let refuse = |what: String| {
            Err(EditError::volume(name, format!("{what} may name it, and is not known here: use `{tool}`")))
        };
        for lv in &vg.lvs {
            for segment in &lv.segments {
                if matches!(segment.kind, SegmentType::Unknown) || segment.unknown_flag().is_some() {
                    return refuse(format!("{}, of type {},", escape(&lv.name), escape(&segment.type_name)));
                }
            }
        }
        if self.history().is_some() {
            return refuse("the history of the group's volumes".into());
        }
        Ok(())
    }
}

/// Replaces names of LVs where a segment has them. A name that a PV has as well means the PV in a list of areas.
pub(super) fn replace_names(segment: &mut Section, names: &BTreeMap<String, String>, pvs: &[&str]) {
    let new_of =
        |value: &Value| value.as_str().and_then(|name| names.get(name)).map(|new| Value::from(new.as_str()));
    for entry in &mut segment.entries {
        let key = entry.key.as_str();
        match &mut entry.node {
            Node::Value(value) if KEYS_OF_A_NAME.contains(&key) => {
                if let Some(new) = new_of(value) {
                    *value = new;
                }
            }
            Node::Array(values) if KEYS_OF_NAMES.contains(&key) => {
                for value in values {
                    let is_pv = value.as_str().is_some_and(|name| pvs.contains(&name));
                    if let Some(new) = new_of(value).filter(|_| !is_pv) {
                        *value = new;
                    }
                }
            }
            Node::Section(message) => replace_names(message, names, pvs),
            Node::Value(_) | Node::Array(_) => {}
        }
    }
}

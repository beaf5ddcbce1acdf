//! Groups whose volumes are served while they are changed: the text is planned by the same [`Draft`] as that of an idle group, and written
//! through the layers that are open; then the devices of the group follow it.
//!
//! Who serves does that in this order, one change of a group at a time:
//!
//! ```text
//!   edit_group ─▶ Draft::make ─▶ Commit::write (a worker's task) ─▶ adopt ─▶ what is in use follows ─▶ pools are told ─▶ what is new comes
//! ```
//!
//! Once the text is written, what it has taken from a volume may be given to another one by the next change: so what is in use follows
//! also where a pool refuses to be told.
//!
//! Invariants: (1) a device whose volume stays keeps its number, and its layers unless its size, or its family of snapshots, has changed; (2) layers that are built
//! anew keep their nodes; (3) what workers keep in memory (pools, families of snapshots) is neither opened twice nor read behind
//! their back; (4) partitions are called after the volume that they lie on, and have its layers: whatever happens to it happens to them.

mod merges;
mod tell;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use blockwork_engine::Layer;
use blockwork_format::escape;
use blockwork_format::lvm2::vg::{self, Lv, LvIndex, SegmentType};
use blockwork_format::lvm2::{Uuid, VolumeGroup};
use blockwork_layer::snapshot::{Family, SnapshotStatus};
use blockwork_layer::thin::Pool;

use super::edit::{self, Author, Commit, Draft, EditError, Opened, Untold};
use super::verdict::Verdicts;
use super::{Families, Group, KnownSnapshot, OpenArray, Shared};
use crate::assembly::Assembly;
use crate::graph::{Above, Content, DeviceId, DeviceKind, GroupId};
use crate::rounds::in_order;
use crate::settings::Autoextend;
use crate::thin::PoolCommit;

pub use super::raid::GrownRaid;
pub use merges::{MergeState, TextMerge};
pub use tell::{TellError, grow, message, tell, untell};

/// A group of which volumes are served, as it is on its disks.
pub struct ServedEditor<'a> {
    assembly: &'a mut Assembly,
    group: GroupId,
    opened: Opened,
}

/// How a pool hears of a change.
pub enum Telling {
    /// By this, since it is open.
    Open(Arc<Pool>),
    /// By what there is to write: it was never used. None: it knows.
    Idle(Option<PoolCommit>),
}

/// What has changed with a text.
#[derive(Default)]
pub struct Adopted {
    /// Volumes that are new, and may be asked for.
    pub added: Vec<String>,
    /// Volumes that have another name, and their partitions: the old one, the new one.
    pub renamed: Vec<(String, String)>,
    /// Volumes that have another size, and their partitions, which are built anew upon them.
    pub resized: Vec<String>,
    /// Arrays of RAID volumes that are to grow, before anything is built upon them; or why one cannot.
    pub raids: Vec<Result<GrownRaid, String>>,
    /// Pools whose parts have grown: for [`Assembly::grown_pool`].
    pub pools: Vec<ResizedPool>,
    /// Arrays whose volumes are gone: they are to be retired before anything else gets what they lie on.
    pub arrays: Vec<Arc<dyn Layer>>,
    /// Origins with other snapshots than before, or of another size, and those that are gone.
    pub families: Vec<ChangedFamily>,
}

/// An origin and its snapshots, which are to be built anew from what their stores hold: by whoever has seen to it that nobody writes
/// to them meanwhile.
pub struct ChangedFamily {
    /// What is to be retired first; none: there were no snapshots, or they were never asked for.
    pub family: Option<Arc<Family>>,
    /// The volumes that it has now, and their partitions; none: its origin is gone.
    pub volumes: Vec<String>,
}

/// An open pool whose parts have another size in the text than before.
pub struct ResizedPool {
    pool: Arc<Pool>,
    group: GroupId,
    data: Option<LvIndex>,
    metadata: Option<LvIndex>,
}

/// An open pool whose devices have grown: with what takes the place of them.
pub struct GrownPool {
    /// The pool.
    pub pool: Arc<Pool>,
    /// Its data device.
    pub data: Option<Arc<dyn Layer>>,
    /// Its metadata device.
    pub metadata: Option<Arc<dyn Layer>>,
}

/// A pool of a group that is extended by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrowingPool {
    /// The group.
    pub group: String,
    /// Its name in that.
    pub name: String,
    /// When it is extended.
    pub autoextend: Autoextend,
    /// Extents of its data.
    pub data_extents: u64,
    /// Extents of its map.
    pub metadata_extents: u64,
    /// Extents that the group has left.
    pub free_extents: u64,
}

impl Assembly {
    /// Begins a change of a group of which volumes are served.
    ///
    /// # Errors
    ///
    /// No such group; or something says that it must not be changed.
    pub fn edit_group(&mut self, name: &str, author: Author) -> Result<ServedEditor<'_>, EditError> {
        let group = edit::find(self, name)?;
        if self.plan.read_only {
            let why = "it is served read-only: start the server without --read-only to change it";
            return Err(EditError::group(name, why));
        }
        let opened = edit::open(self, group, author)?;
        Ok(ServedEditor { assembly: self, group, opened })
    }

    /// The devices of a group follow its new text. Layers are built when they are asked for ([`Assembly::choose`]).
    ///
    /// # Errors
    ///
    /// No such group.
    pub fn adopt(&mut self, name: &str, text: Arc<VolumeGroup>) -> Result<Adopted, EditError> {
        let group = edit::find(self, name)?;
        let kin = Arc::new(Families::of(&text));
        let known = &mut self.graph.groups[group.0];
        let old = std::mem::replace(&mut known.text, text.clone());
        known.kin = kin.clone();
        let mut adopted = Adopted::default();
        let (kept, gone) = self.match_volumes(group, &old, &text, &mut adopted.arrays);
        let (verdicts, visible) = (Verdicts::new(&text), text.visible());
        let (mut resized, mut shared) = (Vec::new(), Shared::new());
        let partitions = self.partitions();
        for Kept { was, now, device } in kept {
            let below = self.graph.groups[group.0].below(now, &mut shared);
            self.graph.devices[device.0].below = below;
            let partitions = partitions.get(&device).map_or(&[][..], Vec::as_slice);
            let renamed = self.update(device, group, &verdicts, now, visible[now.0]);
            if let Some(names) = renamed {
                self.graph.nodes.rename(device, &names.0, &names.1);
                let of_partitions = self.rename_partitions(&names, partitions);
                let all = [vec![names], of_partitions].concat();
                adopted.renamed.extend(all.into_iter().filter(|_| visible[now.0]));
            }
            if old.lv_sectors(was) != text.lv_sectors(now) {
                self.graph.unbuild(device, verdicts.refusal(now));
                partitions.iter().for_each(|partition| self.graph.unbuild(*partition, None));
                // One with copies keeps its array, which is to grow.
                let arrays = &mut self.graph.groups[group.0].arrays;
                let has_copies = |array: &OpenArray| array.copies.is_some();
                if !arrays.get(&now).is_some_and(has_copies) {
                    arrays.remove(&now);
                }
                resized.push(now);
                // Of a family, all are built anew below.
                if visible[now.0] && kin.family_of(now).len() == 1 {
                    let all = [device].into_iter().chain(partitions.iter().copied());
                    adopted.resized.extend(all.map(|id| self.graph.device(id).name.clone()));
                }
            }
        }
        // What is new may be made of what is new.
        shared.clear();
        for lv in in_order(&text, &kin) {
            if self.graph.groups[group.0].lv(lv).is_none() && !verdicts.is_tie(lv) {
                let below = self.graph.groups[group.0].below(lv, &mut shared);
                let device = self.add_volume(group, &verdicts, lv, below, visible[lv.0], None);
                if visible[lv.0] {
                    adopted.added.push(self.graph.device(device).name.clone());
                }
            }
        }
        let changed = changed_families(&old, &text);
        let changed = changed.into_iter().map(|origin| self.part_family(group, &verdicts, origin));
        let gone = gone.into_iter().map(|family| ChangedFamily { family: Some(family), volumes: Vec::new() });
        adopted.families = changed.chain(gone).collect();
        self.open_new_pools(group, &text);
        adopted.raids = resized.iter().filter_map(|lv| self.grown_raid(group, *lv)).collect();
        adopted.pools = self.resized_pools(group, &text, &resized);
        Ok(adopted)
    }

    /// Finds the volumes of a text in the next one, by their identifiers; what is gone is retired. The families of origins that are gone
    /// are given back: they copy chunks out still.
    fn match_volumes(
        &mut self,
        group: GroupId,
        old: &VolumeGroup,
        text: &VolumeGroup,
        gone_arrays: &mut Vec<Arc<dyn Layer>>,
    ) -> (Vec<Kept>, Vec<Arc<Family>>) {
        let by_id = by_id(text);
        let now = |lv: LvIndex| by_id.get(&old.lvs[lv.0].id).copied();
        let known = &mut self.graph.groups[group.0];
        let before = std::mem::replace(&mut known.lvs, vec![None; text.lvs.len()]);
        let pools = std::mem::take(&mut known.thin_pools);
        known.thin_pools = pools.into_iter().filter_map(|(lv, pool)| Some((now(lv)?, pool))).collect();
        let snapshots = std::mem::take(&mut known.snapshots);
        known.snapshots = snapshots.into_iter().filter_map(|(lv, one)| Some((now(lv)?, one))).collect();
        let merges = std::mem::take(&mut known.merges);
        known.merges = merges.into_iter().filter_map(|(lv, one)| Some((now(lv)?, one))).collect();
        let mut gone = Vec::new();
        for (lv, family) in std::mem::take(&mut known.families) {
            match now(lv) {
                Some(now) => drop(known.families.insert(now, family)),
                None => gone.push(family),
            }
        }
        for (lv, array) in std::mem::take(&mut known.arrays) {
            match now(lv) {
                Some(now) => drop(known.arrays.insert(now, array)),
                None => gone_arrays.push(array.layer),
            }
        }
        let (mut kept, partitions) = (Vec::new(), self.partitions());
        for (was, device) in before.into_iter().enumerate() {
            let (was, Some(device)) = (LvIndex(was), device) else { continue };
            match now(was) {
                Some(now) => {
                    self.graph.groups[group.0].lvs[now.0] = Some(device);
                    kept.push(Kept { was, now, device });
                }
                None => {
                    partitions.get(&device).into_iter().flatten().for_each(|above| self.graph.retire(*above));
                    self.graph.retire(device);
                }
            }
        }
        (kept, gone)
    }

    /// Of each device that has some: its partitions. Found by one look at all devices, for whoever asks about many.
    fn partitions(&self) -> HashMap<DeviceId, Vec<DeviceId>> {
        let mut partitions: HashMap<DeviceId, Vec<DeviceId>> = HashMap::new();
        for (id, one) in self.graph.iter().filter(|(_, one)| matches!(one.kind, DeviceKind::Partition(_))) {
            one.below.iter().for_each(|below| partitions.entry(*below).or_default().push(id));
        }
        partitions
    }

    /// The partitions of a device.
    fn partitions_of(&self, device: DeviceId) -> Vec<DeviceId> {
        self.partitions().remove(&device).unwrap_or_default()
    }

    /// What a device is by the new text; the names that it had and has, if these differ.
    fn update(
        &mut self,
        id: DeviceId,
        group: GroupId,
        verdicts: &Verdicts<'_>,
        lv: LvIndex,
        is_offered: bool,
    ) -> Option<(String, String)> {
        let known = &self.graph.groups[group.0];
        let wanted = format!("{}/{}", known.name, known.text.lvs[lv.0].name);
        let device = &mut self.graph.devices[id.0];
        let was = device.name.clone();
        device.kind = DeviceKind::Lv { group, lv };
        device.sectors = blockwork_engine::Sectors(verdicts.sectors(lv));
        device.is_offered = is_offered;
        let is_named = was == wanted || was.strip_prefix(&wanted).is_some_and(|rest| rest.starts_with('#'));
        (!is_named).then(|| (was, self.graph.rename(id, &wanted)))
    }

    /// Partitions get another name with the volume that they lie on; the names that they had and have.
    fn rename_partitions(
        &mut self,
        (old, new): &(String, String),
        partitions: &[DeviceId],
    ) -> Vec<(String, String)> {
        let mut renamed = Vec::with_capacity(partitions.len());
        for id in partitions {
            let was = self.graph.device(*id).name.clone();
            let number = was.strip_prefix(old.as_str()).expect("a partition is called after its volume");
            let wanted = format!("{new}{number}");
            renamed.push((was, self.graph.rename(*id, &wanted)));
        }
        renamed
    }

    /// An origin and its snapshots are no longer what they were: whoever asks for one of them has all built anew. What was known of each
    /// snapshot stays until then: whether it is lost may be known nowhere else.
    fn part_family(&mut self, group: GroupId, verdicts: &Verdicts<'_>, origin: LvIndex) -> ChangedFamily {
        let known = &mut self.graph.groups[group.0];
        let family = known.families.remove(&origin);
        known.merges.remove(&origin);
        let members = known.kin.family_of(origin);
        let (mut volumes, partitions) = (Vec::new(), self.partitions());
        for lv in members {
            let Some(device) = self.graph.groups[group.0].lv(lv) else { continue };
            self.graph.unbuild(device, verdicts.refusal(lv));
            volumes.push(self.graph.device(device).name.clone());
            for partition in partitions.get(&device).into_iter().flatten() {
                self.graph.unbuild(*partition, None);
                volumes.push(self.graph.device(*partition).name.clone());
            }
        }
        ChangedFamily { family, volumes }
    }

    fn open_new_pools(&mut self, group: GroupId, text: &VolumeGroup) {
        let is_pool = |lv: &Lv| matches!(lv.segments[0].kind, SegmentType::ThinPool { .. });
        for lv in (0..text.lvs.len()).map(LvIndex).filter(|lv| is_pool(&text.lvs[lv.0])) {
            if !self.graph.groups[group.0].thin_pools.contains_key(&lv) {
                self.open_pool_of_group(group, text, lv);
            }
        }
    }

    fn resized_pools(&self, group: GroupId, text: &VolumeGroup, resized: &[LvIndex]) -> Vec<ResizedPool> {
        let open = self.graph.groups[group.0].thin_pools.iter();
        let pools = open.filter_map(|(lv, pool)| {
            let SegmentType::ThinPool { metadata, data, .. } = text.lvs[lv.0].segments[0].kind else {
                return None;
            };
            let [data, metadata] = [data, metadata].map(|part| Some(part).filter(|it| resized.contains(it)));
            Some(ResizedPool { pool: pool.pool()?, group, data, metadata })
        });
        pools.filter(|pool| pool.data.is_some() || pool.metadata.is_some()).collect()
    }

    /// What an open pool gets in the place of its parts, when arrays below them have grown.
    ///
    /// # Errors
    ///
    /// A layer of one cannot be built.
    pub fn grown_pool(&mut self, resized: ResizedPool) -> Result<GrownPool, EditError> {
        let mut part = |part: Option<LvIndex>| -> Result<Option<Arc<dyn Layer>>, EditError> {
            let known = &self.graph.groups[resized.group.0];
            let Some((part, device)) = part.and_then(|part| Some((part, known.lv(part)?))) else {
                return Ok(None);
            };
            let name = known.text.lvs[part.0].name.clone();
            self.layer(device).map(Some).map_err(|why| EditError::volume(&name, why))
        };
        let (data, metadata) = (part(resized.data)?, part(resized.metadata)?);
        Ok(GrownPool { pool: resized.pool, data, metadata })
    }

    /// A pool that was never used before has been made by what was written: it is open from now on.
    pub fn open_made_pool(&mut self, group: &str, pool: &str) -> Result<(), EditError> {
        let group = edit::find(self, group)?;
        let text = self.graph.groups[group.0].text.clone();
        if let Some(lv) = text.lv(pool) {
            self.open_pool_of_group(group, &text, lv);
        }
        Ok(())
    }

    /// The open pools that are to be extended by themselves, and when.
    pub fn autoextended(&self) -> Vec<(Arc<Pool>, Autoextend)> {
        let pools = self.graph.groups.iter().flat_map(|group| group.thin_pools.values());
        pools.filter_map(|pool| Some((pool.pool()?, pool.autoextend?))).collect()
    }

    /// What a pool is called that is to be extended by itself, and how large it is.
    pub fn growing_pool(&self, pool: &Arc<Pool>) -> Option<GrowingPool> {
        let is_it = |known: &super::ThinPool| known.pool().is_some_and(|known| Arc::ptr_eq(&known, pool));
        self.graph.groups.iter().find_map(|group| {
            let (lv, known) = group.thin_pools.iter().find(|(_, known)| is_it(known))?;
            let SegmentType::ThinPool { metadata, data, .. } = group.text.lvs[lv.0].segments[0].kind else {
                return None;
            };
            Some(GrowingPool {
                group: group.name.clone(),
                name: group.text.lvs[lv.0].name.clone(),
                autoextend: known.autoextend?,
                data_extents: group.text.lvs[data.0].extents(),
                metadata_extents: group.text.lvs[metadata.0].extents(),
                free_extents: edit::FreeExtents::of(&group.text).total(),
            })
        })
    }

    /// The open pool and the number in it of a thin volume, also of one on which this is a partition.
    pub fn thin_device(&self, volume: &str) -> Option<(Arc<Pool>, u64)> {
        let named = self.graph.device(self.graph.find(volume)?);
        let on = match named.kind {
            DeviceKind::Partition(_) => self.graph.device(named.below[0]),
            _ => named,
        };
        let DeviceKind::Lv { group, lv } = on.kind else { return None };
        let group = &self.graph.groups[group.0];
        let (pool, device_id) = group.text.thin_device(lv)?;
        Some((group.thin_pools.get(&pool)?.pool()?, device_id))
    }

    /// Whether a volume is a thin pool, which is not served itself.
    pub fn is_pool(&self, volume: &str) -> bool {
        let is_one = |(group, lv): (&Group, LvIndex)| {
            matches!(group.text.lvs[lv.0].segments[0].kind, SegmentType::ThinPool { .. })
        };
        self.lv_named(volume).is_some_and(is_one)
    }

    /// The open pool that a volume is.
    pub fn open_pool_named(&self, volume: &str) -> Option<Arc<Pool>> {
        let (group, lv) = self.lv_named(volume)?;
        group.thin_pools.get(&lv)?.pool()
    }

    fn lv_named(&self, volume: &str) -> Option<(&Group, LvIndex)> {
        match self.graph.device(self.graph.find(volume)?).kind {
            DeviceKind::Lv { group, lv } => Some((&self.graph.groups[group.0], lv)),
            _ => None,
        }
    }

    /// The layers of a volume that is served are held on to here no more. They are built anew when somebody asks for the volume.
    pub fn forget_layers(&mut self, volume: &str) {
        if let Some(device) = self.graph.find(volume) {
            self.graph.unbuild(device, None);
        }
    }

    /// The same of an origin with all its snapshots, where there are some. It is for whoever calls to retire the family, and then to have
    /// it [let go](Assembly::let_go).
    pub fn forget_family(&mut self, origin: &str) -> Option<ChangedFamily> {
        let DeviceKind::Lv { group, lv } = self.graph.device(self.graph.find(origin)?).kind else {
            return None;
        };
        self.graph.groups[group.0].families.get(&lv)?;
        let text = self.graph.groups[group.0].text.clone();
        Some(self.part_family(group, &Verdicts::new(&text), lv))
    }

    /// A family that is retired is held on to no more. Which of its snapshots were lost stays known, should they be asked for again: a
    /// store may not say so.
    pub fn let_go(&mut self, family: &Arc<Family>) {
        for group in &mut self.graph.groups {
            group.snapshots.retain(|_, known| known.let_go(family));
        }
    }

    /// The names of all volumes that are gone when this one is removed: its partitions, and an image that was split off it, with that
    /// one's.
    pub fn gone_with(&self, volume: &str) -> Vec<String> {
        let split_off = |(group, raid): (&Group, LvIndex)| {
            group.text.split_images(raid).filter_map(|image| group.lv(image)).collect()
        };
        let images: Vec<DeviceId> = self.lv_named(volume).map_or_else(Vec::new, split_off);
        let names = images.into_iter().map(|image| self.graph.device(image).name.clone());
        let all = names.chain([volume.to_owned()]);
        all.flat_map(|name| [self.partitions_on(&name), vec![name]].concat()).collect()
    }

    /// The names of the volumes that are partitions of this one.
    pub fn partitions_on(&self, volume: &str) -> Vec<String> {
        let Some(id) = self.graph.find(volume) else { return Vec::new() };
        self.partitions_of(id).into_iter().map(|id| self.graph.device(id).name.clone()).collect()
    }
}

/// The volumes of a text, by their identifiers.
fn by_id(text: &VolumeGroup) -> HashMap<Uuid, LvIndex> {
    text.lvs.iter().enumerate().map(|(at, lv)| (lv.id, LvIndex(at))).collect()
}

/// A volume that both texts have.
struct Kept {
    was: LvIndex,
    now: LvIndex,
    device: DeviceId,
}

impl ServedEditor<'_> {
    /// The group.
    pub fn draft(&self) -> &Draft {
        &self.opened.draft
    }

    /// The group, to be changed.
    pub fn draft_mut(&mut self) -> &mut Draft {
        &mut self.opened.draft
    }

    /// What there is to write, and what the text says then. Nothing has been written when this has failed.
    ///
    /// # Errors
    ///
    /// An area has no room for the text, or the change is one that cannot be made while volumes are served.
    pub fn plan(&mut self) -> Result<(Commit, Arc<VolumeGroup>), EditError> {
        let draft = &self.opened.draft;
        let text = VolumeGroup::from_text(&draft.text());
        let text = text.map_err(|source| EditError::metadata(&draft.group().name, source))?;
        self.look_at_stores(&text)?;
        self.check(&text)?;
        Ok((self.opened.commit()?, Arc::new(text)))
    }

    /// Of snapshots that are to be merged and nobody has asked for yet, what their stores say: once the text says that they are being
    /// merged, Linux merges them when it activates the group next.
    fn look_at_stores(&mut self, text: &VolumeGroup) -> Result<(), EditError> {
        let old = self.assembly.graph.groups[self.group.0].text.clone();
        for snapshot in planned_merges(&old, text) {
            self.assembly.look_at_store(self.group, &old, &snapshot).map_err(|why| {
                EditError::volume(&old.lvs[snapshot.store.0].name, format!("it cannot be merged: {why}"))
            })?;
        }
        Ok(())
    }

    /// What is true of the layers that are in use must stay so.
    fn check(&self, text: &VolumeGroup) -> Result<(), EditError> {
        let old = &self.assembly.graph.groups[self.group.0].text;
        let (by_id, above) = (by_id(text), self.assembly.graph.above());
        for (was, lv) in old.lvs.iter().enumerate().map(|(at, lv)| (LvIndex(at), lv)) {
            match by_id.get(&lv.id).copied() {
                None => self.check_unused(was, lv, &above)?,
                Some(now)
                    if text.lv_sectors(now) < old.lv_sectors(was) && self.is_built_upon(was, &above) =>
                {
                    let why = "it is served, and a client may be using what would be cut off: stop serving it first";
                    return Err(EditError::volume(&lv.name, why));
                }
                Some(now) if text.lv_sectors(now) > old.lv_sectors(was) => self.check_array(was, lv)?,
                Some(_) => {}
            }
        }
        // Of several snapshots of one origin, each asks about all of that family: once is enough.
        let mut families = HashSet::new();
        for snapshot in planned_merges(old, text) {
            self.check_merge(old, &snapshot)?;
            if families.insert(snapshot.origin) {
                self.check_open_family(old, snapshot.origin, &above)?;
            }
        }
        for lv in planned_thin_merges(old, text) {
            if let Some(user) = self.user_of(lv, &above) {
                let why = format!("it is served, and {user}: stop serving it first");
                return Err(EditError::volume(&old.lvs[lv.0].name, why));
            }
        }
        let merging: HashSet<Uuid> = origins_merged_into(text).collect();
        for origin in changed_families(text, old) {
            self.check_family(old, origin, &merging)?;
            if families.insert(origin) {
                self.check_open_family(old, origin, &above)?;
            }
        }
        Ok(())
    }

    /// A RAID volume that is open keeps its array when it grows: that has to be able to.
    fn check_array(&self, lv: LvIndex, text: &Lv) -> Result<(), EditError> {
        let known = &self.assembly.graph.groups[self.group.0];
        let Some(array) = known.arrays.get(&lv).and_then(|array| array.copies.as_ref()) else {
            return Ok(());
        };
        let refuse = |why: String| Err(EditError::volume(&text.name, why));
        let read_only = known.lv(lv).and_then(|device| self.assembly.graph.device(device).read_only.as_ref());
        if let Some(why) = read_only {
            return refuse(format!("it is served, and must not be written: {why}"));
        }
        if !self.opened.has_one_block() {
            let why = "it is served, and the disks of its group have logical blocks of several sizes: stop serving it first";
            return refuse(why.into());
        }
        array.check_growing_legs().or_else(|why| refuse(format!("it is served: {why}")))
    }

    /// A snapshot that is to be merged is one still, as far as that is known, and its origin can be written.
    fn check_merge(&self, old: &VolumeGroup, snapshot: &vg::Snapshot) -> Result<(), EditError> {
        let known = &self.assembly.graph.groups[self.group.0];
        let origin = known.lv(snapshot.origin).map(|device| self.assembly.graph.device(device));
        if let Some(why) = origin.and_then(|origin| origin.read_only.as_ref()) {
            let why = format!("its origin must not be written: {why}");
            return Err(EditError::volume(&old.lvs[snapshot.store.0].name, why));
        }
        let status = known.snapshots.get(&snapshot.store).and_then(KnownSnapshot::status);
        if status == Some(SnapshotStatus::Invalid) {
            let why =
                "it cannot be merged: its store was full, or could not be written; it can only be removed";
            return Err(EditError::volume(&old.lvs[snapshot.store.0].name, why));
        }
        Ok(())
    }

    /// Whether layers of a volume were built.
    fn is_built(&self, lv: LvIndex) -> bool {
        let device = self.assembly.graph.groups[self.group.0].lv(lv);
        device.is_some_and(|device| self.assembly.graph.device(device).layer().is_some())
    }

    /// Whether layers of a volume, or of anything that lies on it, were built. What lies on it may have been there before the volume has
    /// become larger, and go by the layers of then.
    fn is_built_upon(&self, lv: LvIndex, above: &Above) -> bool {
        let graph = &self.assembly.graph;
        let mut left: Vec<DeviceId> = graph.groups[self.group.0].lv(lv).into_iter().collect();
        let mut seen = HashSet::new();
        while let Some(id) = left.pop() {
            if graph.device(id).layer().is_some() {
                return true;
            }
            left.extend(above.of(id).filter(|user| seen.insert(*user)));
        }
        false
    }

    /// A family does not change while a snapshot is merged into one of these origins. Where the old text alone says that one is, this is
    /// the end of that merge.
    fn check_family(
        &self,
        old: &VolumeGroup,
        origin: LvIndex,
        merging: &HashSet<Uuid>,
    ) -> Result<(), EditError> {
        let is_merging = merging.contains(&old.lvs[origin.0].id);
        let kin = &self.assembly.graph.groups[self.group.0].kin;
        if is_merging && kin.family_of(origin).iter().any(|lv| self.is_built(*lv)) {
            let why = "it is served, and a snapshot is being merged into it: let that come to its end, or stop serving it first";
            return Err(EditError::volume(&old.lvs[origin.0].name, why));
        }
        Ok(())
    }

    /// An origin and its snapshots that are served are built anew when they change. What else lies on them would not hear of it.
    fn check_open_family(&self, old: &VolumeGroup, origin: LvIndex, above: &Above) -> Result<(), EditError> {
        let members = self.assembly.graph.groups[self.group.0].kin.family_of(origin);
        if !members.iter().any(|lv| self.is_built_upon(*lv, above)) {
            return Ok(());
        }
        let refuse = |lv: LvIndex, why: String| Err(EditError::volume(&old.lvs[lv.0].name, why));
        if !self.opened.has_one_block() {
            let why = "it is served, and the disks of its group have logical blocks of several sizes: stop serving it first";
            return refuse(origin, why.into());
        }
        for lv in members {
            if let Some(user) = self.user_of(lv, above) {
                return refuse(lv, format!("it is served, and {user}: stop serving it first"));
            }
        }
        Ok(())
    }

    /// What goes must not be a part of anything: not of another group, an array or a table.
    fn check_unused(&self, lv: LvIndex, text: &Lv, above: &Above) -> Result<(), EditError> {
        let refuse = |user| Err(EditError::volume(&text.name, format!("{user}: remove that first")));
        self.user_of(lv, above).map_or(Ok(()), refuse)
    }

    /// What a volume, or a partition of it, is a part of besides this group.
    fn user_of(&self, lv: LvIndex, above: &Above) -> Option<String> {
        let graph = &self.assembly.graph;
        let device = graph.groups[self.group.0].lv(lv)?;
        let is_of_group =
            |kind: &DeviceKind| matches!(kind, DeviceKind::Lv { group, .. } if *group == self.group);
        let mut left = vec![device];
        while let Some(id) = left.pop() {
            if id != device && matches!(graph.device(id).content, Content::Pv(_) | Content::MdMember(_)) {
                return Some(format!("{} is part of an array or a group", escape(graph.device(id).title())));
            }
            for user in above.of(id) {
                let one = graph.device(user);
                match &one.kind {
                    DeviceKind::Partition(_) => left.push(user),
                    kind if is_of_group(kind) => {}
                    _ => return Some(format!("{} lies on it", escape(&one.name))),
                }
            }
        }
        None
    }

    /// How a pool hears of what it is yet to be told.
    ///
    /// # Errors
    ///
    /// Its metadata cannot be read, or is another one than the text is about.
    pub fn telling(&mut self, untold: &Untold) -> Result<Telling, EditError> {
        let known = &self.assembly.graph.groups[self.group.0];
        let lv = known.text.lv(&untold.pool);
        let open = lv.and_then(|lv| known.thin_pools.get(&lv)).and_then(super::ThinPool::pool);
        match open {
            Some(pool) => Ok(Telling::Open(pool)),
            None => edit::tell_idle_pool(self.assembly, &self.opened.draft, untold).map(Telling::Idle),
        }
    }
}

/// The snapshots, by their places in `old`, that `text` has merged and `old` has not.
fn planned_merges(old: &VolumeGroup, text: &VolumeGroup) -> Vec<vg::Snapshot> {
    let merging = text.snapshots().filter(|one| one.merging).map(|one| text.lvs[one.tie.0].id);
    let merging: HashSet<Uuid> = merging.collect();
    let is_planned = |one: &vg::Snapshot| !one.merging && merging.contains(&old.lvs[one.tie.0].id);
    old.snapshots().filter(is_planned).collect()
}

/// The thin snapshots that `text` has merged and `old` has not, and their origins: by their places in `old`.
fn planned_thin_merges(old: &VolumeGroup, text: &VolumeGroup) -> Vec<LvIndex> {
    let before: HashSet<Uuid> = old.merging_thins().map(|(_, snapshot)| old.lvs[snapshot.0].id).collect();
    let new = text.merging_thins().filter(|(_, snapshot)| !before.contains(&text.lvs[snapshot.0].id));
    let places = by_id(old);
    let place = |lv: LvIndex| places.get(&text.lvs[lv.0].id).copied();
    new.flat_map(|(origin, snapshot)| [place(origin), place(snapshot)]).flatten().collect()
}

/// The origins into which snapshots are merged.
fn origins_merged_into(text: &VolumeGroup) -> impl Iterator<Item = Uuid> {
    text.snapshots().filter(|one| one.merging).map(|one| text.lvs[one.origin.0].id)
}

/// The origins, by their place in `text`, that have other snapshots there than in `other`, or of which one has another size. That one
/// of them is to be merged changes nothing yet (`merges.rs`).
fn changed_families(other: &VolumeGroup, text: &VolumeGroup) -> Vec<LvIndex> {
    let (before, now) = (Kinship::of(other), Kinship::of(text));
    let mut all = [before.origins(), now.origins()].concat();
    all.sort_unstable();
    all.dedup();
    all.retain(|origin| before.members(*origin) != now.members(*origin));
    all.into_iter().filter_map(|origin| now.places.get(&origin).copied()).collect()
}

/// The families of a text, by the identifiers of their origins.
struct Kinship<'a> {
    text: &'a VolumeGroup,
    families: Families,
    places: HashMap<Uuid, LvIndex>,
}

impl Kinship<'_> {
    fn of(text: &VolumeGroup) -> Kinship<'_> {
        Kinship { text, families: Families::of(text), places: by_id(text) }
    }

    fn origins(&self) -> Vec<Uuid> {
        self.text.snapshots().map(|one| self.text.lvs[one.origin.0].id).collect()
    }

    /// An origin and its snapshots, with their sizes; none: there is no such volume.
    fn members(&self, origin: Uuid) -> Option<Vec<(Uuid, u64)>> {
        let members = self.families.family_of(*self.places.get(&origin)?).into_iter();
        let mut members: Vec<_> =
            members.map(|lv| (self.text.lvs[lv.0].id, self.text.lv_sectors(lv))).collect();
        members.sort_unstable();
        Some(members)
    }
}

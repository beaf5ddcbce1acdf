//! Snapshots of LVM: an origin and all its snapshots are built together, whichever of them was asked for.
//!
//! What LVM calls a snapshot's volume is its store: the snapshot itself is as large as its origin. As in device-mapper, the bare
//! volumes below are called NAME-real and NAME-cow. While a snapshot is merged into its origin, the origin is what that snapshot
//! was; the snapshot is no volume any more, and the merge goes on whenever the origin is served to be written.
//!
//! Invariants: (1) an origin that can be written has all its snapshots in its stack, or they are lost, and their stores say so;
//! (2) where it is not known what a store holds (a disk is missing, or cannot be read), the origin is read-only; where that store
//! is being merged, the origin's own data is in it, and nothing of the family is served; (3) a snapshot that was lost stays lost, as long
//! as the server lasts also where its store cannot say so.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use blockwork_engine::{Layer, NodeId, NodeKind, Sectors};
use blockwork_format::lvm2::VolumeGroup;
use blockwork_format::lvm2::vg::{LvIndex, Snapshot as SnapshotText};
use blockwork_format::snapshot::{Found, Header, Layout, read, read_header};
use blockwork_format::{ErrorKind, FormatError, escape};
use blockwork_layer::snapshot::{
    Family, Features, Merge, Merging, Origin, Persistence, STEP, Snapshot, SnapshotStatus, StoreConfig,
};

use super::stack::{Built, raid10_chunk};
use crate::assembly::Assembly;
use crate::graph::{GroupId, Stack};
use crate::nodes::MAJOR_DM;

/// Which volumes of a text are an origin and its snapshots. Looked through once: a text may have thousands of them, and each is asked
/// about.
#[derive(Debug)]
pub(crate) struct Families {
    /// Of each store: the origin. The first of a text counts, if it claims several.
    origins: HashMap<LvIndex, LvIndex>,
    /// Of each origin: its snapshots, each store once.
    snapshots: HashMap<LvIndex, Vec<SnapshotText>>,
}

impl Families {
    /// Those of a text.
    pub(crate) fn of(text: &VolumeGroup) -> Families {
        let mut families = Families { origins: HashMap::new(), snapshots: HashMap::new() };
        for one in text.snapshots() {
            let own = families.snapshots.entry(one.origin).or_default();
            if let Entry::Vacant(place) = families.origins.entry(one.store) {
                place.insert(one.origin);
                if one.store != one.origin {
                    own.push(one);
                }
            }
        }
        families
    }

    /// The origin to whose family a volume belongs, if it belongs to one. (A volume that claims to be a store and an origin is a store.)
    pub(crate) fn origin_of(&self, lv: LvIndex) -> Option<LvIndex> {
        let of_store = self.origins.get(&lv).copied();
        of_store.or_else(|| self.snapshots.contains_key(&lv).then_some(lv))
    }

    /// The snapshots of an origin, each store once.
    fn snapshots_of(&self, origin: LvIndex) -> &[SnapshotText] {
        self.snapshots.get(&origin).map_or(&[], |own| &own[..])
    }

    /// The volumes that are built together with this one, itself included.
    pub(crate) fn family_of(&self, lv: LvIndex) -> Vec<LvIndex> {
        let Some(origin) = self.origin_of(lv) else { return vec![lv] };
        let mut family: Vec<LvIndex> = self.snapshots_of(origin).iter().map(|one| one.store).collect();
        family.extend([origin, lv]);
        family.sort_unstable();
        family.dedup();
        family
    }
}

/// How large a snapshot is: as its origin was when it was made. One that is being merged is the origin.
pub(crate) fn snapshot_sectors(text: &VolumeGroup, snapshot: &SnapshotText) -> u64 {
    text.lv_sectors(if snapshot.merging { snapshot.origin } else { snapshot.tie })
}

/// Of a store that says so.
const INVALID: &str =
    "the snapshot is invalid: its store was full, or could not be written; it can only be removed";

/// A store that goes into a family.
struct Kept {
    store: LvIndex,
    merging: bool,
    /// It is there only to be called lost, for this reason.
    lost: Option<String>,
}

/// What a process knows of a snapshot that it serves, or has served.
#[derive(Clone, Debug)]
pub enum KnownSnapshot {
    /// It is this one of a family, which may have been built anew since.
    Of(Arc<Family>, usize),
    /// It was lost, and no family has it: it was found so, or its family is let go, and its store may not say so.
    Lost,
}

impl KnownSnapshot {
    /// How it is.
    pub fn status(&self) -> Option<SnapshotStatus> {
        match self {
            KnownSnapshot::Of(family, nth) => family.status(*nth),
            KnownSnapshot::Lost => Some(SnapshotStatus::Invalid),
        }
    }

    /// Holds on to that family no more; whether there is anything left that only this process knows.
    pub(super) fn let_go(&mut self, family: &Arc<Family>) -> bool {
        match self {
            KnownSnapshot::Of(own, _) if Arc::ptr_eq(own, family) => {
                let is_lost = self.status() == Some(SnapshotStatus::Invalid);
                *self = KnownSnapshot::Lost;
                is_lost
            }
            _ => true,
        }
    }
}

/// What is found of a store.
enum Member {
    /// Kept; where there is a reason, only to be called lost.
    Kept(StoreConfig, Option<String>),
    /// Lost already, or never one: nobody has to look after it.
    Dead(String),
    /// Nobody knows what it holds.
    Unknown(String),
}

/// What became of a family's volumes.
type Outcomes = Vec<(LvIndex, Built)>;

impl Assembly {
    /// Builds an origin and its snapshots, as far as that is possible; their devices then have their stacks.
    pub(super) fn build_family(&mut self, group: GroupId, origin: LvIndex) {
        let known = &self.graph.groups[group.0];
        let (text, kin) = (known.text.clone(), known.kin.clone());
        let family = kin.family_of(origin);
        // What the metadata refuses stays refused; and nothing of a family is made of the family.
        let refused: HashMap<LvIndex, String> =
            family.iter().filter_map(|lv| Some((*lv, self.begin_family(group, *lv)?))).collect();
        for (lv, built) in self.family(group, &text, &kin, origin, &refused) {
            let Some(device) = self.graph.groups[group.0].lv(lv) else { continue };
            let built = refused.get(&lv).map_or(built, |why| Err(why.clone()));
            let name = self.graph.device(device).name.clone();
            let chunk = raid10_chunk(&text, lv);
            let built = built
                .and_then(|layer| self.with_settings(&name, layer, chunk).map_err(|error| error.to_string()));
            self.graph.devices[device.0].stack = match built {
                Ok(layer) => Stack::Ready(layer),
                Err(why) => Stack::Refused(why),
            };
        }
    }

    /// Marks a volume as being built; gives why it was refused before.
    fn begin_family(&mut self, group: GroupId, lv: LvIndex) -> Option<String> {
        let device = self.graph.groups[group.0].lv(lv)?;
        let stack = &mut self.graph.devices[device.0].stack;
        match std::mem::replace(stack, Stack::Refused("it is made of itself, or of its snapshots".into())) {
            Stack::Refused(why) => Some(why),
            Stack::Ready(_) | Stack::Unbuilt => None,
        }
    }

    fn family(
        &mut self,
        group: GroupId,
        text: &VolumeGroup,
        kin: &Families,
        origin: LvIndex,
        refused: &HashMap<LvIndex, String>,
    ) -> Outcomes {
        let snapshots = kin.snapshots_of(origin);
        let name = escape(&text.lvs[origin.0].name);
        let real = match refused.get(&origin) {
            Some(why) => Err(why.clone()),
            None if kin.origin_of(origin) != Some(origin) => Err("it is itself a snapshot".to_owned()),
            None => self.bare(group, origin, "real"),
        };
        let refuse_all = |why: String| {
            let of_snapshot = format!("its origin {name} cannot be served: {why}");
            let refuse = |one: &SnapshotText| (one.store, Err(of_snapshot.clone()));
            snapshots.iter().map(refuse).chain([(origin, Err(why))]).collect()
        };
        let real = match real {
            Ok(real) => real,
            Err(why) => return refuse_all(why),
        };
        if snapshots.iter().filter(|one| one.merging).count() > 1 {
            return refuse_all("its metadata says that several snapshots are being merged into it".into());
        }
        let (mut outcomes, mut kept, mut configs) = (Outcomes::new(), Vec::new(), Vec::new());
        for snapshot in snapshots {
            let member = match refused.get(&snapshot.store) {
                Some(why) => Member::Unknown(why.clone()),
                None => self.member(group, text, snapshot),
            };
            let store = escape(&text.lvs[snapshot.store.0].name);
            match member {
                Member::Kept(config, None) => {
                    kept.push(Kept { store: snapshot.store, merging: snapshot.merging, lost: None });
                    configs.push(config);
                }
                Member::Kept(_, Some(why)) | Member::Dead(why) | Member::Unknown(why) if snapshot.merging => {
                    return refuse_all(format!(
                        "part of its data is in {store}, which is merged into it: {why}"
                    ));
                }
                Member::Kept(config, lost) => {
                    kept.push(Kept { store: snapshot.store, merging: false, lost });
                    configs.push(config);
                }
                Member::Dead(why) => outcomes.push((snapshot.store, Err(why))),
                Member::Unknown(why) => {
                    let held = format!("its snapshot {store} could not be kept as it is: {why}");
                    self.hold(group, origin, held);
                    outcomes.push((snapshot.store, Err(why)));
                }
            }
        }
        let is_merging = kept.iter().any(|kept| kept.merging);
        match self.join(group, origin, real.clone(), &kept, configs) {
            Ok(joined) => outcomes.extend(joined),
            Err(why) if is_merging => return refuse_all(why),
            Err(why) => {
                self.hold(group, origin, format!("its snapshots could not be kept as they are: {why}"));
                outcomes.push((origin, Ok(real)));
                outcomes.extend(kept.into_iter().map(|kept| (kept.store, Err(why.clone()))));
            }
        }
        outcomes
    }

    /// Makes a family of an origin and stores.
    fn join(
        &mut self,
        group: GroupId,
        origin: LvIndex,
        real: Arc<dyn Layer>,
        stores: &[Kept],
        configs: Vec<StoreConfig>,
    ) -> Result<Outcomes, String> {
        let merging = stores.iter().position(|kept| kept.merging);
        let family = match merging {
            Some(nth) => Family::with_merge(real, configs, nth),
            None => Family::new(real, configs),
        };
        let family = family.map_err(|error| error.to_string())?;
        self.graph.groups[group.0].families.insert(origin, family.clone());
        let top: Arc<dyn Layer> = match Merge::new(family.clone(), STEP) {
            Some(merge) => {
                let node = self.family_node(group, origin, NodeKind::SnapshotMerge)?;
                self.graph.groups[group.0].merges.insert(origin, merge.clone());
                Arc::new(Merging::new(node, merge, self.may_be_written(group, origin)))
            }
            None => {
                let node = self.family_node(group, origin, NodeKind::SnapshotOrigin)?;
                Arc::new(Origin::new(node, family.clone()))
            }
        };
        let mut outcomes: Outcomes = vec![(origin, Ok(top))];
        for (nth, Kept { store, merging, lost }) in stores.iter().enumerate() {
            if let Some(why) = lost {
                outcomes.push((*store, Err(why.clone())));
                continue;
            }
            self.graph.groups[group.0].snapshots.insert(*store, KnownSnapshot::Of(family.clone(), nth));
            if *merging {
                outcomes.push((*store, Err("it is being merged into its origin: serve that".into())));
                continue;
            }
            let node = self.family_node(group, *store, NodeKind::Snapshot)?;
            let snapshot = Snapshot::new(node, family.clone(), nth).ok_or("there are fewer snapshots")?;
            outcomes.push((*store, Ok(Arc::new(snapshot))));
        }
        Ok(outcomes)
    }

    fn may_be_written(&self, group: GroupId, lv: LvIndex) -> bool {
        let device = self.graph.groups[group.0].lv(lv);
        let read_only = device.is_none_or(|device| self.graph.device(device).read_only.is_some());
        !read_only && !self.plan.read_only
    }

    fn family_node(&mut self, group: GroupId, lv: LvIndex, kind: NodeKind) -> Result<NodeId, String> {
        let device = self.graph.groups[group.0].lv(lv).ok_or("it is no volume by itself")?;
        let name = self.graph.device(device).name.clone();
        self.graph.nodes.of_volume(device, &name, kind, MAJOR_DM).map_err(|error| error.to_string())
    }

    /// The layer of a volume without what its snapshots, or its origin, make of it.
    fn bare(&mut self, group: GroupId, lv: LvIndex, suffix: &str) -> Built {
        let device = self.graph.groups[group.0].lv(lv).ok_or("it is no volume by itself")?;
        let name = format!("{}-{suffix}", self.graph.device(device).name);
        self.bare_layer(device, group, lv, name)
    }

    /// The store of a snapshot, and what it holds.
    fn member(&mut self, group: GroupId, text: &VolumeGroup, snapshot: &SnapshotText) -> Member {
        let SnapshotText { store, chunk_size, merging, .. } = *snapshot;
        if !merging && self.is_lost(group, store) {
            return Member::Dead(INVALID.to_owned());
        }
        // What else the family knew that the store was in before is in the store.
        self.graph.groups[group.0].snapshots.remove(&store);
        let layer = match self.bare(group, store, "cow") {
            Ok(layer) => layer,
            Err(why) => return Member::Unknown(why),
        };
        let sectors = snapshot_sectors(text, snapshot);
        let header = match self.read(&*layer, |source| read_header(source)) {
            Ok(header) => header,
            Err(error) => return Member::of_error(&error),
        };
        let wanted = u32::try_from(chunk_size).ok().and_then(Layout::new);
        let Some(layout) = header.map(|Header { layout, .. }| layout).or(wanted) else {
            return Member::Dead(format!("its chunk is {chunk_size} sectors, expected a power of two"));
        };
        let found = self.read(&*layer, |source| read(source, sectors));
        let mut config = StoreConfig {
            name: format!("{}/{}", escape(&text.name), escape(&text.lvs[store.0].name)),
            store: layer,
            sectors: Sectors(sectors),
            layout,
            persistence: Persistence::Persistent { overflow: false },
            features: Features::default(),
            found: Found::New,
            unusable: false,
        };
        match found {
            // An invalid one has nothing that could be merged: the origin is as it is.
            Ok(Found::Invalid(_)) if !merging => {
                self.graph.groups[group.0].snapshots.insert(store, KnownSnapshot::Lost);
                Member::Dead(INVALID.to_owned())
            }
            Ok(found) => {
                config.found = found;
                Member::Kept(config, None)
            }
            Err(error) if matches!(error.kind, ErrorKind::Io(_)) => Member::of_error(&error),
            Err(error) => {
                config.unusable = true;
                Member::Kept(config, Some(format!("{error}; the snapshot is lost")))
            }
        }
    }

    /// Looks whether a snapshot was lost of which nothing is known, as its family was not built.
    ///
    /// # Errors
    ///
    /// It cannot be told, or it was lost by what nobody but its store knows; where the store says that it was lost, that is
    /// [known](KnownSnapshot::Lost) from now on.
    pub(super) fn look_at_store(
        &mut self,
        group: GroupId,
        text: &VolumeGroup,
        snapshot: &SnapshotText,
    ) -> Result<(), String> {
        if self.graph.groups[group.0].snapshots.contains_key(&snapshot.store) {
            return Ok(());
        }
        match self.member(group, text, snapshot) {
            Member::Kept(_, Some(why)) | Member::Unknown(why) => Err(why),
            Member::Dead(why) if !self.is_lost(group, snapshot.store) => Err(why),
            Member::Kept(_, None) | Member::Dead(_) => Ok(()),
        }
    }

    /// Whether the family that the store was in before has lost it: its header may say otherwise, where that could not be written.
    fn is_lost(&self, group: GroupId, store: LvIndex) -> bool {
        let known = self.graph.groups[group.0].snapshots.get(&store);
        known.and_then(KnownSnapshot::status) == Some(SnapshotStatus::Invalid)
    }

    /// Makes an origin read-only.
    fn hold(&mut self, group: GroupId, origin: LvIndex, why: String) {
        if let Some(device) = self.graph.groups[group.0].lv(origin) {
            self.graph.devices[device.0].read_only.get_or_insert(why);
        }
    }
}

impl Member {
    fn of_error(error: &FormatError) -> Member {
        match error.kind {
            ErrorKind::Io(_) => Member::Unknown(error.to_string()),
            _ => Member::Dead(format!("{error}; the snapshot is lost")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VOLUMES: u64 = 4;

    /// A group of a few volumes; each tie is of a store to an origin.
    fn text(ties: &[(u64, u64)]) -> Option<VolumeGroup> {
        let section = |name: String, id: usize, segment: String| {
            format!(
                "{name} {{ id = \"{id:06}-0000-0000-0000-0000-0000-000000\" status = [\"READ\", \"WRITE\", \"VISIBLE\"] \
                 segment_count = 1 segment1 {{ start_extent = 0 extent_count = 1 {segment} }} }}\n"
            )
        };
        let volumes = (0..VOLUMES as usize).map(|nr| section(format!("v{nr}"), nr, "type = \"zero\"".into()));
        let ties = ties.iter().enumerate().map(|(nr, (store, origin))| {
            let segment =
                format!("type = \"snapshot\" chunk_size = 8 origin = \"v{origin}\" cow_store = \"v{store}\"");
            section(format!("snapshot{nr}"), 100 + nr, segment)
        });
        let lvs: String = volumes.chain(ties).collect();
        let text = format!(
            "vg {{ id = \"999999-0000-0000-0000-0000-0000-000000\" seqno = 1 format = \"lvm2\" \
             status = [\"RESIZEABLE\", \"READ\", \"WRITE\"] flags = [] extent_size = 8192 max_lv = 0 max_pv = 0 \
             metadata_copies = 0 physical_volumes {{ }} logical_volumes {{ {lvs} }} }}\n\
             contents = \"Text Format Volume Group\"\nversion = 1\n"
        );
        VolumeGroup::from_text(text.as_bytes()).ok()
    }

    /// As [`Families::origin_of`], by looking at each snapshot.
    fn origin_of(text: &VolumeGroup, lv: LvIndex) -> Option<LvIndex> {
        let of_store = text.snapshots().find(|one| one.store == lv).map(|one| one.origin);
        of_store.or_else(|| text.snapshots().find(|one| one.origin == lv).map(|one| one.origin))
    }

    /// As [`Families::snapshots_of`], by looking at each of them for each.
    fn snapshots_of(text: &VolumeGroup, origin: LvIndex) -> Vec<LvIndex> {
        let mut seen = std::collections::HashSet::from([origin]);
        text.snapshots()
            .filter(|one| one.origin == origin && origin_of(text, one.store) == Some(origin))
            .filter(|one| seen.insert(one.store))
            .map(|one| one.tie)
            .collect()
    }

    #[test]
    fn families_are_what_looking_at_each_pair_of_volumes_finds_whatever_a_text_claims() {
        let mut believed = 0;
        // All texts with three ties, also of volumes to themselves, in circles, and twice.
        for nr in 0..(VOLUMES * VOLUMES).pow(3) {
            let pairs = [nr, nr / VOLUMES.pow(2), nr / VOLUMES.pow(4)];
            let ties = pairs.map(|pair| (pair % VOLUMES, pair / VOLUMES % VOLUMES));
            let Some(text) = text(&ties) else { continue };
            believed += 1;
            let families = Families::of(&text);
            for lv in (0..text.lvs.len()).map(LvIndex) {
                assert_eq!(families.origin_of(lv), origin_of(&text, lv), "{lv:?} of {ties:?}");
                let own: Vec<LvIndex> = families.snapshots_of(lv).iter().map(|one| one.tie).collect();
                assert_eq!(own, snapshots_of(&text, lv), "{lv:?} of {ties:?}");
            }
        }
        assert!(believed > 500, "{believed} texts are believed");
    }
}

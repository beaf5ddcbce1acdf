//! Snapshots of LVM: an origin and all its snapshots are built together, whichever of them was asked for.
//!
//! What LVM calls a snapshot's volume is its store: the snapshot itself is as large as its origin. As in device-mapper, the bare
//! volumes below are called NAME-real and NAME-cow.
//!
//! Invariants: (1) an origin that can be written has all its snapshots in its stack, or they are lost, and their stores say so;
//! (2) where it is not known what a store holds (a disk is missing, or cannot be read), the origin is read-only.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use blockwork_engine::{Layer, NodeId, NodeKind, Sectors};
use blockwork_format::lvm2::VolumeGroup;
use blockwork_format::lvm2::vg::{LvIndex, Snapshot as SnapshotText};
use blockwork_format::snapshot::{Found, Header, Layout, read, read_header};
use blockwork_format::{ErrorKind, FormatError, escape};
use blockwork_layer::snapshot::{Family, Features, Origin, Persistence, Snapshot, StoreConfig};

use super::stack::{Built, Volume};
use crate::assembly::Assembly;
use crate::graph::{GroupId, Stack};
use crate::nodes::MAJOR_DM;

/// The origin to whose family a volume belongs, if it belongs to one. (A volume that claims to be a store and an origin is a store.)
pub(super) fn origin_of(text: &VolumeGroup, lv: LvIndex) -> Option<LvIndex> {
    let snapshots = || text.snapshots().filter(|one| !one.merging);
    let of_store = snapshots().find(|one| one.store == lv).map(|one| one.origin);
    of_store.or_else(|| snapshots().find(|one| one.origin == lv).map(|one| one.origin))
}

/// The snapshots of an origin, each store once.
fn snapshots_of(text: &VolumeGroup, origin: LvIndex) -> Vec<SnapshotText> {
    let mut seen = HashSet::from([origin]);
    text.snapshots()
        .filter(|one| !one.merging && one.origin == origin && origin_of(text, one.store) == Some(origin))
        .filter(|one| seen.insert(one.store))
        .collect()
}

/// The volumes that are built together with this one, itself included.
pub(crate) fn family_of(text: &VolumeGroup, lv: LvIndex) -> Vec<LvIndex> {
    let Some(origin) = origin_of(text, lv) else { return vec![lv] };
    let mut family: Vec<LvIndex> = snapshots_of(text, origin).into_iter().map(|one| one.store).collect();
    family.extend([origin, lv]);
    family.sort_unstable();
    family.dedup();
    family
}

/// Of a store that says so.
const INVALID: &str =
    "the snapshot is invalid: its store was full, or could not be written; it can only be removed";

/// A store, as it goes into a family.
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
        let text = self.graph.groups[group.0].text.clone();
        let family = family_of(&text, origin);
        // What the metadata refuses stays refused; and nothing of a family is made of the family.
        let refused: HashMap<LvIndex, String> =
            family.iter().filter_map(|lv| Some((*lv, self.begin_family(group, *lv)?))).collect();
        for (lv, built) in self.family(group, &text, origin, &refused) {
            let Some(device) = self.graph.groups[group.0].lv(lv) else { continue };
            let built = refused.get(&lv).map_or(built, |why| Err(why.clone()));
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
        origin: LvIndex,
        refused: &HashMap<LvIndex, String>,
    ) -> Outcomes {
        let snapshots = snapshots_of(text, origin);
        let name = escape(&text.lvs[origin.0].name);
        let real = match refused.get(&origin) {
            Some(why) => Err(why.clone()),
            None if origin_of(text, origin) != Some(origin) => Err("it is itself a snapshot".to_owned()),
            None => self.bare(group, origin, "real"),
        };
        let real = match real {
            Ok(real) => real,
            Err(why) => {
                let of_snapshot = format!("its origin {name} cannot be served: {why}");
                let refuse = |one: &SnapshotText| (one.store, Err(of_snapshot.clone()));
                return snapshots.iter().map(refuse).chain([(origin, Err(why))]).collect();
            }
        };
        let (mut outcomes, mut kept, mut configs) = (Outcomes::new(), Vec::new(), Vec::new());
        for snapshot in &snapshots {
            let member = match refused.get(&snapshot.store) {
                Some(why) => Member::Unknown(why.clone()),
                None => self.member(group, text, snapshot),
            };
            match member {
                Member::Kept(config, why) => {
                    kept.push((snapshot.store, why));
                    configs.push(config);
                }
                Member::Dead(why) => outcomes.push((snapshot.store, Err(why))),
                Member::Unknown(why) => {
                    let store = escape(&text.lvs[snapshot.store.0].name);
                    self.hold(
                        group,
                        origin,
                        format!("its snapshot {store} could not be kept as it is: {why}"),
                    );
                    outcomes.push((snapshot.store, Err(why)));
                }
            }
        }
        match self.join(group, origin, real.clone(), &kept, configs) {
            Ok(joined) => outcomes.extend(joined),
            Err(why) => {
                self.hold(group, origin, format!("its snapshots could not be kept as they are: {why}"));
                outcomes.push((origin, Ok(real)));
                outcomes.extend(kept.into_iter().map(|(store, _)| (store, Err(why.clone()))));
            }
        }
        outcomes
    }

    /// Makes a family of an origin and stores, some of which are there only to be called lost.
    fn join(
        &mut self,
        group: GroupId,
        origin: LvIndex,
        real: Arc<dyn Layer>,
        stores: &[(LvIndex, Option<String>)],
        configs: Vec<StoreConfig>,
    ) -> Result<Outcomes, String> {
        let family = Family::new(real, configs).map_err(|error| error.to_string())?;
        let node = self.family_node(group, origin, NodeKind::SnapshotOrigin)?;
        let mut outcomes: Outcomes = vec![(origin, Ok(Arc::new(Origin::new(node, family.clone()))))];
        for (nth, (store, lost)) in stores.iter().enumerate() {
            if let Some(why) = lost {
                outcomes.push((*store, Err(why.clone())));
                continue;
            }
            let node = self.family_node(group, *store, NodeKind::Snapshot)?;
            let snapshot = Snapshot::new(node, family.clone(), nth).ok_or("there are fewer snapshots")?;
            outcomes.push((*store, Ok(Arc::new(snapshot))));
            self.graph.groups[group.0].snapshots.insert(*store, (family.clone(), nth));
        }
        Ok(outcomes)
    }

    fn family_node(&mut self, group: GroupId, lv: LvIndex, kind: NodeKind) -> Result<NodeId, String> {
        let device = self.graph.groups[group.0].lv(lv).ok_or("it is no volume by itself")?;
        let name = self.graph.device(device).name.clone();
        self.graph.nodes.add(&name, kind, MAJOR_DM).map_err(|error| error.to_string())
    }

    /// The layer of a volume without what its snapshots, or its origin, make of it.
    fn bare(&mut self, group: GroupId, lv: LvIndex, suffix: &str) -> Built {
        let device = self.graph.groups[group.0].lv(lv).ok_or("it is no volume by itself")?;
        let name = format!("{}-{suffix}", self.graph.device(device).name);
        Volume::new(device, group, lv, name).build(self)
    }

    /// The store of a snapshot, and what it holds.
    fn member(&mut self, group: GroupId, text: &VolumeGroup, snapshot: &SnapshotText) -> Member {
        let SnapshotText { origin, store, chunk_size, .. } = *snapshot;
        let layer = match self.bare(group, store, "cow") {
            Ok(layer) => layer,
            Err(why) => return Member::Unknown(why),
        };
        let sectors = text.lv_sectors(origin);
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
            Ok(Found::Invalid(_)) => Member::Dead(INVALID.to_owned()),
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

//! LVM2: from physical volumes to logical ones.
//!
//! [`Pv`] is what a device says of itself, with the texts of its metadata areas, each parsed once however many devices have
//! it. `choose` finds out which text is true of which group, and which device is which of its physical volumes; its result
//! becomes a [`Group`]. `verdict` says which volumes can be served and how; `stack` builds their layers when somebody
//! asks.
//!
//! Invariants: (1) of several texts of a group the one with the highest seqno counts, and every older or broken copy is
//! told; (2) a physical volume is found by UUID only; where two devices have the same one, neither is used; (3) metadata is
//! written by [`edit`] alone.

mod cache;
pub(crate) mod choose;
pub mod edit;
pub(crate) mod metadata;
mod mirror;
mod pv;
mod raid;
pub mod served;
mod snapshot;
pub(crate) mod stack;
mod thin;
pub(crate) mod verdict;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use blockwork_engine::Layer;
use blockwork_format::lvm2::VolumeGroup;
use blockwork_format::lvm2::vg::{Area as AreaOf, LvIndex};
use blockwork_layer::md::Array;
use blockwork_layer::snapshot::{Family, Merge};

use crate::graph::{DeviceId, Graph};

pub(crate) use snapshot::Families;

pub use crate::thin::PoolUsage;
pub use pv::{Area, Pv};
pub use snapshot::KnownSnapshot;
pub use thin::ThinPool;
pub(crate) use thin::check_transaction;

/// A volume group that was assembled.
#[derive(Debug)]
pub struct Group {
    /// What its volumes' names begin with: its own name, with a part of its UUID where another group has that name.
    pub name: String,
    /// What its metadata says.
    pub text: Arc<VolumeGroup>,
    /// Which of its volumes that makes origins and snapshots.
    pub(crate) kin: Arc<Families>,
    /// Of each of its physical volumes: the device, or why there is none.
    pub pvs: Vec<Result<DeviceId, String>>,
    /// Of each of its logical volumes: the device; none for what only ties a snapshot to its origin.
    pub lvs: Vec<Option<DeviceId>>,
    /// Its thin pools.
    pub thin_pools: BTreeMap<LvIndex, ThinPool>,
    /// Why nothing of it can be believed.
    pub refused: Option<String>,
    /// Of each store whose snapshot is served, or was lost while it was: what is known of it.
    pub snapshots: HashMap<LvIndex, KnownSnapshot>,
    /// Of each origin that is open: what it shares with its snapshots.
    pub(crate) families: HashMap<LvIndex, Arc<Family>>,
    /// Of each RAID volume that is open: its array, of which there must not be two.
    pub(crate) arrays: HashMap<LvIndex, OpenArray>,
    /// Of each origin that is served while a snapshot is merged into it: that merge.
    pub merges: HashMap<LvIndex, Arc<Merge>>,
    /// Why none of its volumes may be written.
    pub read_only: Option<String>,
    /// What people should know.
    pub warnings: Vec<String>,
}

/// A RAID volume that is open.
#[derive(Debug)]
pub(crate) struct OpenArray {
    /// The volume's layer.
    pub(crate) layer: Arc<dyn Layer>,
    /// What keeps its copies; none of a RAID0, which has none, and of several segments, of which none is the volume.
    pub(crate) copies: Option<Arc<Array>>,
}

/// Of each origin: what it is made of, and so are its snapshots. Good for as long as no device comes that one of them is made of.
pub(crate) type Shared = HashMap<LvIndex, Arc<[DeviceId]>>;

impl Group {
    /// The device of a logical volume that has one.
    pub fn lv(&self, lv: LvIndex) -> Option<DeviceId> {
        self.lvs.get(lv.0).copied().flatten()
    }

    /// The arrays of RAID volumes that are open and have copies, or a parity.
    pub fn raids(&self) -> impl Iterator<Item = (LvIndex, &Arc<Array>)> {
        self.arrays.iter().filter_map(|(lv, array)| Some((*lv, array.copies.as_ref()?)))
    }

    /// The devices that a logical volume is made of, as far as they are there. An origin and its snapshots, which are built
    /// together, are made of the same ones, and none of them of another: whichever comes first, `shared` has that for all of them.
    pub(crate) fn below(&self, lv: LvIndex, shared: &mut Shared) -> Arc<[DeviceId]> {
        match self.kin.origin_of(lv) {
            Some(origin) => shared.entry(origin).or_insert_with(|| self.below_all(lv)).clone(),
            None => self.below_all(lv),
        }
    }

    fn below_all(&self, lv: LvIndex) -> Arc<[DeviceId]> {
        let mut below: Vec<DeviceId> =
            self.kin.family_of(lv).into_iter().flat_map(|lv| self.below_itself(lv)).collect();
        below.sort_unstable();
        below.dedup();
        below.into()
    }

    /// The devices that it is made of without what snapshots have to do with it.
    fn below_itself(&self, lv: LvIndex) -> Vec<DeviceId> {
        let areas = self.text.lvs[lv.0].segments.iter().flat_map(|segment| segment.areas().0);
        let pvs = areas.filter_map(|area| match area {
            AreaOf::Pv { pv, .. } => self.pvs[pv.0].as_ref().ok().copied(),
            AreaOf::Lv { .. } => None,
        });
        // What was split off it is none of it until it is put back.
        let own =
            lvs_below(&self.text, lv).into_iter().filter(|below| self.text.split_off(*below) != Some(lv));
        let lvs = own.filter_map(|below| self.lv(below));
        pvs.chain(lvs).collect()
    }

    /// Of each of its logical volumes: whether it needs a physical volume that is missing, itself or by what it is made of.
    pub fn partial(&self, graph: &Graph) -> Vec<bool> {
        let mut lvs: Vec<(DeviceId, usize)> =
            (0..self.lvs.len()).filter_map(|lv| self.lv(LvIndex(lv)).map(|device| (device, lv))).collect();
        // Devices stand upon devices with lower numbers.
        lvs.sort_unstable();
        let by_device: BTreeMap<DeviceId, usize> = lvs.iter().copied().collect();
        // Of each list of devices, whether one of them is: thousands of snapshots share theirs.
        let mut lists = BTreeMap::new();
        let mut partial = vec![false; self.lvs.len()];
        for (device, lv) in lvs {
            let areas = self.text.lvs[lv].segments.iter().flat_map(|segment| segment.areas().0);
            let is_missing = |area: &AreaOf| matches!(area, AreaOf::Pv { pv, .. } if self.pvs[pv.0].is_err());
            let own = areas.into_iter().any(is_missing);
            let below = &graph.device(device).below;
            let is_partial = |below: &DeviceId| by_device.get(below).is_some_and(|lv| partial[*lv]);
            let is_below = *lists.entry(below.as_ptr()).or_insert_with(|| below.iter().any(is_partial));
            partial[lv] = own || is_below;
        }
        partial
    }

    /// Whether a physical volume is missing.
    pub fn is_partial(&self) -> bool {
        self.pvs.iter().any(Result::is_err)
    }
}

/// The logical volumes that another one is made of, or cannot be without.
pub(crate) fn lvs_below(text: &VolumeGroup, lv: LvIndex) -> Vec<LvIndex> {
    let mut below = Vec::new();
    for segment in &text.lvs[lv.0].segments {
        below.extend(segment.areas().0.iter().filter_map(|area| match area {
            AreaOf::Lv { lv, .. } => Some(*lv),
            AreaOf::Pv { .. } => None,
        }));
        below.extend(segment.kind.whole_lvs());
        below.extend(segment.kind.shared_lvs());
    }
    below
}

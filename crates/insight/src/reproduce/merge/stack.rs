//! What is read from: an EBS volume with a physical volume on it, a logical volume, and a snapshot of that.

use std::sync::Arc;

use blockwork_engine::{Layer, Merges, NodeId, NodeInfo, NodeKind, Sector, Sectors};
use blockwork_format::snapshot::{Found, Layout};
use blockwork_layer::Linear;
use blockwork_layer::snapshot::{Family, FamilyError, Features, Persistence, Snapshot, StoreConfig};
use blockwork_sim::DeviceModel;

use super::clients::PAGE;

/// 200 GiB.
const DEVICE: Sectors = Sectors(200 << 21);
/// Where LVM lets data begin.
pub(super) const DATA_START: Sector = Sector(2048);
/// Size of the logical volume: 10 GiB.
pub(super) const VOLUME: Sectors = Sectors(10 << 21);
/// Size of the snapshot's store, right behind it: 1 GiB.
const STORE: Sectors = Sectors(1 << 21);

/// On what a client works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stack {
    /// The logical volume.
    Volume,
    /// A snapshot of it to which nothing was copied yet.
    Snapshot,
}

impl Stack {
    pub(super) fn name(self) -> &'static str {
        match self {
            Stack::Volume => "volume",
            Stack::Snapshot => "snapshot",
        }
    }

    /// The layers on `disk`.
    pub(super) fn build(self, disk: Arc<dyn Layer>, node: NodeId) -> Result<Arc<dyn Layer>, FamilyError> {
        let range = |node, start, sectors| -> Arc<dyn Layer> {
            Arc::new(Linear::new(node, disk.clone(), start, sectors).expect("the disk is larger than both"))
        };
        let origin = range(node, DATA_START, VOLUME);
        if self == Stack::Volume {
            return Ok(origin);
        }
        let chunk = u32::try_from(PAGE.0).expect("a page is small");
        let config = StoreConfig {
            name: "snapshot".into(),
            store: range(NodeId(node.0 + 1), DATA_START + VOLUME, STORE),
            sectors: VOLUME,
            layout: Layout::new(chunk).expect("a page is a chunk that there may be"),
            persistence: Persistence::Persistent { overflow: false },
            features: Features::default(),
            found: Found::New,
            unusable: false,
        };
        let family = Family::new(origin, vec![config])?;
        let snapshot = Snapshot::new(NodeId(node.0 + 2), family, 0).expect("the family has one snapshot");
        Ok(Arc::new(snapshot))
    }
}

/// How many nodes there are at most.
pub(super) const NODES: u16 = 4;

/// The nodes of all that, by number, named as in the report.
pub(super) fn nodes() -> [NodeInfo; NODES as usize] {
    let node = |name: &str, kind, device| NodeInfo { name: name.into(), kind, device };
    [
        node("nvme1n1", NodeKind::Leaf, (259, 0)),
        node("origin", NodeKind::Linear, (252, 0)),
        node("store", NodeKind::Linear, (252, 1)),
        node("snapshot", NodeKind::Snapshot, (252, 2)),
    ]
}

/// The device, with that setting of `nomerges`.
pub(super) fn device(merges: Merges) -> DeviceModel {
    let mut model = DeviceModel::ebs_gp2(DEVICE);
    model.limits.merges = merges;
    model
}

/// As sysfs writes it.
pub(super) fn nomerges(merges: Merges) -> u8 {
    match merges {
        Merges::All => 0,
        Merges::Simple => 1,
        Merges::None => 2,
    }
}

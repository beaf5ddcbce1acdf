//! The layers of a logical volume, built when somebody asks for it.
//!
//! A volume of one segment is that segment's layer; of several, a table over them. The segments of a table have one number
//! for each of their types together, since a volume may have more segments than there are numbers.

use std::collections::HashMap;
use std::sync::Arc;

use blockwork_engine::{Layer, NodeId, NodeKind, Sector, Sectors};
use blockwork_format::escape;
use blockwork_format::lvm2::VolumeGroup;
use blockwork_format::lvm2::vg::{Area, LvIndex, RaidLevel, Segment as SegmentText, SegmentType};
use blockwork_layer::md::Array;
use blockwork_layer::{ErrorTarget, Linear, Segment, Stripe, Striped, Table, Zero};

use super::OpenArray;
use crate::assembly::Assembly;
use crate::graph::{DeviceId, DeviceKind, GroupId, Stack};
use crate::nodes::MAJOR_DM;

/// A layer, or why there is none.
pub(crate) type Built = Result<Arc<dyn Layer>, String>;

impl Assembly {
    /// The layer of a device; of a logical volume, it is built now if it was not before.
    pub(crate) fn layer(&mut self, id: DeviceId) -> Built {
        let device = self.graph.device(id);
        let built = match (&device.stack, &device.kind) {
            (Stack::Ready(layer), _) => return Ok(layer.clone()),
            (Stack::Refused(why), _) => return Err(why.clone()),
            (Stack::Unbuilt, DeviceKind::Lv { group, lv }) => {
                let (group, lv, name) = (*group, *lv, device.name.clone());
                let known = &self.graph.groups[group.0];
                let text = known.text.clone();
                if let Some(origin) = known.kin.origin_of(lv) {
                    self.build_family(group, origin);
                    return match &self.graph.device(id).stack {
                        Stack::Ready(layer) => Ok(layer.clone()),
                        Stack::Refused(why) => Err(why.clone()),
                        Stack::Unbuilt => Err("it cannot be told from its snapshots".into()),
                    };
                }
                let built = self.bare_layer(id, group, lv, name.clone());
                let chunk = raid10_chunk(&text, lv);
                built.and_then(|layer| {
                    self.with_settings(&name, layer, chunk).map_err(|error| error.to_string())
                })
            }
            (Stack::Unbuilt, DeviceKind::Partition(partition)) => {
                let (below, partition) = (device.below[0], partition.clone());
                self.layer(below).and_then(|below_it| self.partition_layer(below, &below_it, &partition))
            }
            (Stack::Unbuilt, _) => {
                unreachable!(
                    "only logical volumes, and partitions of them, are built when they are asked for"
                )
            }
        };
        let built = built.and_then(|layer| self.graph.with_few_ways(layer));
        self.graph.devices[id.0].stack = match &built {
            Ok(layer) => Stack::Ready(layer.clone()),
            Err(why) => Stack::Refused(why.clone()),
        };
        built
    }
}

impl Assembly {
    /// The layer of a volume without what its snapshots, or its origin, make of it. An array that is open stays the one there is.
    pub(super) fn bare_layer(
        &mut self,
        device: DeviceId,
        group: GroupId,
        lv: LvIndex,
        name: String,
    ) -> Built {
        if let Some(array) = self.graph.groups[group.0].arrays.get(&lv) {
            return Ok(array.layer.clone());
        }
        let mut volume = Volume::new(device, group, lv, name);
        let layer = volume.build(self)?;
        let known = &mut self.graph.groups[group.0];
        let is_raid = |segment: &SegmentText| matches!(segment.kind, SegmentType::Raid { .. });
        let segments = &known.text.lvs[lv.0].segments;
        if segments.iter().any(is_raid) {
            let copies = volume.copies.take().filter(|_| segments.len() == 1);
            known.arrays.insert(lv, OpenArray { layer: layer.clone(), copies });
        }
        Ok(layer)
    }
}

/// A logical volume that is being built.
pub(super) struct Volume {
    pub(super) device: DeviceId,
    pub(super) group: GroupId,
    pub(super) lv: LvIndex,
    pub(super) name: String,
    /// Numbers of its layers so far.
    nodes: HashMap<&'static str, NodeId>,
    /// What keeps the copies of its last RAID segment.
    pub(super) copies: Option<Arc<Array>>,
}

impl Volume {
    pub(super) fn new(device: DeviceId, group: GroupId, lv: LvIndex, name: String) -> Volume {
        Volume { device, group, lv, name, nodes: HashMap::new(), copies: None }
    }

    pub(super) fn build(&mut self, assembly: &mut Assembly) -> Built {
        let text = assembly.graph.groups[self.group.0].text.clone();
        let segments = &text.lvs[self.lv.0].segments;
        if let [only] = &segments[..] {
            return self.segment(assembly, &text, only, true);
        }
        let mut targets = Vec::with_capacity(segments.len());
        for segment in segments {
            let target = self.segment(assembly, &text, segment, false)?;
            let start = Sector(segment.start_extent * text.extent_sectors);
            targets.push(Segment { start, target });
        }
        let node = self.node(assembly, NodeKind::Table, true)?;
        Ok(Arc::new(Table::new(node, targets).map_err(|error| error.to_string())?))
    }

    /// A number for a layer of a kind: the volume's own, or the one that all its segments of that kind share.
    pub(super) fn node(
        &mut self,
        assembly: &mut Assembly,
        kind: NodeKind,
        alone: bool,
    ) -> Result<NodeId, String> {
        if let Some(node) = self.nodes.get(kind.name()).filter(|_| !alone) {
            return Ok(*node);
        }
        let name = if alone { self.name.clone() } else { format!("{} {}", self.name, kind.name()) };
        let node = assembly
            .graph
            .nodes
            .of_volume(self.device, &name, kind, MAJOR_DM)
            .map_err(|error| error.to_string())?;
        self.nodes.insert(kind.name(), node);
        Ok(node)
    }

    fn segment(
        &mut self,
        assembly: &mut Assembly,
        text: &VolumeGroup,
        segment: &SegmentText,
        alone: bool,
    ) -> Built {
        let sectors = Sectors(segment.extent_count * text.extent_sectors);
        match &segment.kind {
            SegmentType::Linear(area) => self.linear(assembly, text, segment, area, alone),
            SegmentType::Mirror { .. } => self.mirror(assembly, text, segment, alone),
            SegmentType::Cache { .. } => self.cache(assembly, text, segment, alone),
            SegmentType::Writecache { .. } => self.writecache(assembly, text, segment, alone),
            SegmentType::Striped { stripe_size, stripes } => {
                let mut members = Vec::with_capacity(stripes.len());
                for area in stripes {
                    let (below, start) = self.area(assembly, text, area)?;
                    members.push(Stripe { below, start });
                }
                let node = self.node(assembly, NodeKind::Striped, alone)?;
                let striped = Striped::new(node, Sectors(*stripe_size), members, sectors);
                let at = segment.start_extent;
                Ok(Arc::new(striped.map_err(|error| format!("its segment at extent {at}: {error}"))?))
            }
            SegmentType::Zero => {
                Ok(Arc::new(Zero::new(self.node(assembly, NodeKind::Zero, alone)?, sectors)))
            }
            SegmentType::Error => {
                Ok(Arc::new(ErrorTarget::new(self.node(assembly, NodeKind::Error, alone)?, sectors)))
            }
            SegmentType::Raid { .. } => self.raid(assembly, text, segment, sectors),
            SegmentType::Thin { .. } => self.thin(assembly, text, &segment.kind, sectors, alone),
            _ => unreachable!("volumes of other types are refused when their group is assembled"),
        }
    }

    pub(super) fn linear(
        &mut self,
        assembly: &mut Assembly,
        text: &VolumeGroup,
        segment: &SegmentText,
        area: &Area,
        alone: bool,
    ) -> Built {
        let sectors = Sectors(segment.extent_count * text.extent_sectors);
        let (below, start) = self.area(assembly, text, area)?;
        let (size, node) = (below.sectors(), self.node(assembly, NodeKind::Linear, alone)?);
        let linear = Linear::new(node, below, start, sectors);
        Ok(Arc::new(linear.ok_or_else(|| outside(segment, start, sectors, size))?))
    }

    /// What an area lies on, and where it begins there.
    pub(super) fn area(
        &self,
        assembly: &mut Assembly,
        text: &VolumeGroup,
        area: &Area,
    ) -> Result<(Arc<dyn Layer>, Sector), String> {
        let group = &assembly.graph.groups[self.group.0];
        match *area {
            Area::Pv { pv, extent } => {
                let device = group.pvs[pv.0].clone()?;
                let start = text.pvs[pv.0].pe_start + extent * text.extent_sectors;
                Ok((assembly.layer(device)?, Sector(start)))
            }
            Area::Lv { lv, extent } => {
                Ok((self.part(assembly, text, lv)?, Sector(extent * text.extent_sectors)))
            }
        }
    }

    pub(super) fn warn(&self, assembly: &mut Assembly, warning: String) {
        assembly.graph.warn(self.device, warning);
    }

    pub(super) fn is_writable(&self, assembly: &Assembly) -> bool {
        assembly.graph.device(self.device).read_only.is_none()
    }

    pub(super) fn make_read_only(&self, assembly: &mut Assembly, why: String) {
        assembly.graph.devices[self.device.0].read_only.get_or_insert(why);
    }

    /// The layer of another volume that this one is made of.
    pub(super) fn part(&self, assembly: &mut Assembly, text: &VolumeGroup, lv: LvIndex) -> Built {
        let name = || escape(&text.lvs[lv.0].name);
        let device = assembly.graph.groups[self.group.0].lv(lv);
        let device =
            device.ok_or_else(|| format!("{}, which it is made of, is no volume by itself", name()))?;
        assembly.layer(device).map_err(|why| format!("{}, which it is made of: {why}", name()))
    }
}

/// The chunk of a volume that is a RAID10; zero of others.
pub(super) fn raid10_chunk(text: &VolumeGroup, lv: LvIndex) -> Sectors {
    match text.lvs[lv.0].segments.first().map(|segment| &segment.kind) {
        Some(SegmentType::Raid { level: RaidLevel::Raid10, stripe_size, .. }) => Sectors(*stripe_size),
        _ => Sectors::ZERO,
    }
}

pub(super) fn outside(segment: &SegmentText, start: Sector, sectors: Sectors, size: Sectors) -> String {
    format!(
        "its segment at extent {} needs sectors {start} to {} of a device of {size}; was that cut?",
        segment.start_extent,
        start.0.saturating_add(sectors.0)
    )
}

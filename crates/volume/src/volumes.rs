//! Which volumes are served: those that were asked for, or all that nothing else stands upon but a thin volume on its external origin.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use blockwork_engine::{Layer, Misaligned, NodeId, SECTOR, Volume, topmost_first};
use blockwork_format::escape;
use blockwork_format::lvm2::vg::LvIndex;

use crate::assembly::Assembly;
use crate::error::VolumeError;
use crate::graph::{Content, Device, DeviceId, DeviceKind, Graph};

/// Names that an error shows.
const NAMES_SHOWN: usize = 40;

/// A volume that was chosen.
pub struct Chosen {
    /// The volume.
    pub volume: Volume,
    /// Why it is read-only, where nobody asked for that.
    pub read_only: Option<String>,
}

impl Assembly {
    /// The volumes of these names.
    ///
    /// # Errors
    ///
    /// No volume has a name, or the one that has it cannot be served; or one that can be written lies under another one.
    pub fn choose(&mut self, names: &[String]) -> Result<Vec<Chosen>, VolumeError> {
        if !names.iter().all(|name| self.graph.find(name).is_some()) {
            self.look_deeper();
        }
        let mut ids = Vec::with_capacity(names.len());
        for name in names {
            ids.push(self.named(name)?);
        }
        let chosen = ids.iter().map(|id| self.chosen(*id)).collect::<Result<Vec<_>, _>>()?;
        self.check_overlaps(&ids, &chosen)?;
        Ok(chosen)
    }

    /// All volumes that nothing else makes use of, and external origins, which nobody writes; where there are tables, the tables' devices alone. Those that cannot
    /// be served are left out, and returned as errors.
    pub fn choose_all(&mut self) -> (Vec<Chosen>, Vec<VolumeError>) {
        self.look_deeper();
        let tables: Vec<DeviceId> = self.volumes(|device| matches!(device.kind, DeviceKind::Table));
        let ids = if tables.is_empty() {
            let used = self.used();
            // A pool by itself is nothing that can be opened, be there volumes in it or not.
            let mut ids = self.volumes(|device| !self.is_pool(&device.name));
            ids.retain(|id| !used.contains(id));
            ids
        } else {
            tables
        };
        let (mut all, mut refused) = (Vec::with_capacity(ids.len()), Vec::new());
        for id in ids {
            match self.chosen(id) {
                Ok(chosen) => all.push(chosen),
                Err(error) => refused.push(error),
            }
        }
        (all, refused)
    }

    fn look_deeper(&mut self) {
        self.look_into_volumes();
        self.tell_what_is_left();
    }

    fn named(&self, name: &str) -> Result<DeviceId, VolumeError> {
        let found = self.graph.find(name);
        let Some(id) = found.filter(|id| self.graph.device(*id).is_offered || self.is_part(*id)) else {
            self.check_is_no_group(name)?;
            let mut names: Vec<&str> =
                self.volumes(|_| true).iter().map(|id| &*self.graph.device(*id).name).collect();
            let more = names.len().saturating_sub(NAMES_SHOWN);
            names.truncate(NAMES_SHOWN);
            let mut there_are = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            if more > 0 {
                there_are += &format!(" and {more} more; `blockwork scan` shows all");
            }
            return Err(VolumeError::NoVolume { name: name.to_owned(), there_are });
        };
        if self.is_part(id) {
            let what = match self.merged_into(id) {
                Some(origin) => {
                    format!("it is being merged into {origin}: serve that")
                }
                None => "it is a part of another volume: serve that one".into(),
            };
            return Err(VolumeError::Refused { name: name.to_owned(), what });
        }
        Ok(id)
    }

    /// A group has volumes, and is none.
    fn check_is_no_group(&self, name: &str) -> Result<(), VolumeError> {
        let Some(group) = self.graph.groups.iter().find(|group| group.name == name) else { return Ok(()) };
        let ids = (0..group.text.lvs.len()).filter_map(|lv| group.lv(LvIndex(lv)));
        let offered = ids.map(|id| self.graph.device(id));
        let offered = offered.filter(|device| device.is_offered && !self.is_pool(&device.name));
        let mut names: Vec<String> = offered.map(|device| escape(&device.name)).collect();
        let more = names.len().saturating_sub(NAMES_SHOWN);
        names.truncate(NAMES_SHOWN);
        let what = match (&names[..], more) {
            ([], _) => "it is a volume group without volumes".to_owned(),
            (names, 0) => format!("it is a volume group: name volumes of it: {}", names.join(", ")),
            (names, more) => {
                format!("it is a volume group: name volumes of it: {} and {more} more", names.join(", "))
            }
        };
        Err(VolumeError::Refused { name: name.to_owned(), what })
    }

    /// Whether it is a logical volume that nobody sees.
    fn is_part(&self, id: DeviceId) -> bool {
        let device = self.graph.device(id);
        !device.is_offered && matches!(device.kind, DeviceKind::Lv { .. })
    }

    /// The origin into which a snapshot is merged, by its name in their group.
    fn merged_into(&self, id: DeviceId) -> Option<String> {
        let DeviceKind::Lv { group, lv, .. } = self.graph.device(id).kind else { return None };
        let text = &self.graph.groups[group.0].text;
        Some(escape(&text.lvs[text.merged_into(lv)?.0].name))
    }

    fn chosen(&mut self, id: DeviceId) -> Result<Chosen, VolumeError> {
        let name = self.graph.device(id).name.clone();
        let root = self.layer(id).map_err(|what| VolumeError::Refused { name: name.clone(), what })?;
        if let Some(what) = self.misaligned(&root) {
            return Err(VolumeError::Refused { name, what });
        }
        let device = self.graph.device(id);
        // A disk is read-only because its option says so: that was asked for.
        let asked =
            self.plan.read_only || matches!(device.kind, DeviceKind::Disk { .. } | DeviceKind::Partition(_));
        let why = device.read_only.clone().filter(|_| !asked);
        let read_only = self.plan.read_only || why.is_some() || root.limits().read_only;
        Ok(Chosen { volume: Volume::new(name, root, read_only), read_only: why })
    }

    /// Why whole blocks of a volume are none of its disks, if so. It can be looked into all the same.
    fn misaligned(&self, root: &Arc<dyn Layer>) -> Option<String> {
        let layers = topmost_first([root.clone()]);
        let (layer, found) = layers.iter().find_map(|layer| Some((layer, layer.misaligned()?)))?;
        let infos = self.graph.nodes.infos();
        let name = |node: NodeId| escape(&infos[usize::from(node.0)].name);
        let place = match found {
            Misaligned::Start { below, at } => format!("begins at sector {} of {}", at.0, name(below)),
            Misaligned::Boundary { at } => {
                format!("is put together of pieces, one of which ends at sector {}", at.0)
            }
        };
        Some(format!(
            "{} {place}, in the middle of one of its blocks of {block} bytes, which are the least that is read and written \
             there. If that is what O_DIRECT demands of a file, add ',direct=off' to the disk, or copy the image to where 512 bytes will \
             do; on a disk of such blocks, begin and end at multiples of {} sectors",
            name(layer.node()),
            u64::from(layer.limits().logical_block_size) / SECTOR,
            block = layer.limits().logical_block_size,
        ))
    }

    /// Offered volumes that are so, in the order for people: each device, then its partitions.
    fn volumes(&self, which: impl Fn(&Device) -> bool) -> Vec<DeviceId> {
        let is_partition = |device: &Device| matches!(device.kind, DeviceKind::Partition(_));
        let mut partitions: HashMap<DeviceId, Vec<DeviceId>> = HashMap::new();
        for (id, device) in self.graph.iter().filter(|(_, device)| is_partition(device)) {
            partitions.entry(device.below[0]).or_default().push(id);
        }
        let mut order = Vec::with_capacity(self.graph.devices.len());
        for (id, _) in self.graph.iter().filter(|(_, device)| !is_partition(device)) {
            order.push(id);
            order.extend(partitions.get(&id).into_iter().flatten());
        }
        order.retain(|id| self.graph.device(*id).is_offered && which(self.graph.device(*id)));
        order
    }

    /// Devices that arrays, volume groups or tables make use of, or that belong to one that is not assembled; and what
    /// lies below them.
    fn used(&self) -> HashSet<DeviceId> {
        let (mut used, mut lists) = (HashSet::new(), HashSet::new());
        for (id, device) in self.graph.iter() {
            let own = Some(id).filter(|_| belongs(device));
            let is_news = makes_use(device) && lists.insert(device.below.as_ptr());
            // Two who only read are not in each other's way.
            let is_read = |one: &DeviceId| {
                self.graph.is_external_origin(&device.kind, *one)
                    && self.graph.device(*one).read_only.is_some()
            };
            let below = device.below.iter().copied().filter(|one| is_news && !is_read(one));
            for one in below.chain(own) {
                if used.insert(one) {
                    used.extend(self.graph.all_below(one));
                }
            }
        }
        used
    }

    /// Two volumes of which one is under the other would be written behind each other's back. A partition and its
    /// disk are no such two: they are ranges of the same bytes, and nobody keeps books of them.
    fn check_overlaps(&self, ids: &[DeviceId], chosen: &[Chosen]) -> Result<(), VolumeError> {
        let numbered = ids.iter().zip(chosen).enumerate().rev();
        let written: HashMap<DeviceId, usize> =
            numbered.filter(|(_, (_, one))| !one.volume.read_only).map(|(nth, (id, _))| (*id, nth)).collect();
        let mut lists = HashSet::new();
        for above in ids {
            let top = claiming(&self.graph, *above);
            // Of thousands of snapshots that stand upon the same, one is looked at.
            if !lists.insert(self.graph.device(top).below.as_ptr()) {
                continue;
            }
            let under = self.graph.all_below(top);
            if let Some(nth) = under.iter().filter_map(|below| written.get(below)).min() {
                return Err(VolumeError::Overlap {
                    above: self.graph.device(*above).name.clone(),
                    below: self.graph.device(ids[*nth]).name.clone(),
                });
            }
        }
        self.check_tables(ids, chosen)
    }

    /// A table may say that it lies on a disk which an array or a group has for itself: what is written through both of them is written
    /// behind each other's back, likewise. Several tables on one disk are their author's business, as for `dmsetup`.
    fn check_tables(&self, ids: &[DeviceId], chosen: &[Chosen]) -> Result<(), VolumeError> {
        let is_table = |id: DeviceId| matches!(self.graph.device(id).kind, DeviceKind::Table);
        let all_of = |id: DeviceId| self.graph.all_below(id).into_iter().chain([id]);
        let written = ids.iter().zip(chosen).filter(|(_, one)| !one.volume.read_only);
        // What the tables under each of those lie on; mostly there are none.
        let on_tables: Vec<(DeviceId, Lies)> = written
            .map(|(id, _)| (*id, self.lies(all_of(*id).filter(|one| is_table(*one)))))
            .filter(|(_, lies)| !lies.on.is_empty())
            .collect();
        if on_tables.is_empty() {
            return Ok(());
        }
        let mut lists = HashSet::new();
        for other in ids {
            let users = all_of(*other).filter(|one| makes_use(self.graph.device(*one)) && !is_table(*one));
            let news = users.filter(|one| lists.insert(self.graph.device(*one).below.as_ptr()));
            let claimed = self.lies(news);
            let met = on_tables.iter().filter(|(table, _)| table != other);
            let mut shared = met.filter_map(|(table, lies)| Some((*table, lies.shares(&claimed)?)));
            if let Some((table, disk)) = shared.next() {
                let name = |id: DeviceId| self.graph.device(id).name.clone();
                return Err(VolumeError::Shared {
                    table: name(table),
                    other: name(*other),
                    disk: name(disk),
                });
            }
        }
        Ok(())
    }

    /// What those devices lie on.
    fn lies(&self, devices: impl Iterator<Item = DeviceId>) -> Lies {
        let on: HashSet<DeviceId> = devices.flat_map(|one| self.graph.device(one).below.to_vec()).collect();
        let within = on.iter().flat_map(|one| self.disks_of_partition(*one)).collect();
        Lies { on, within }
    }

    /// What a partition is of, and what that is of.
    fn disks_of_partition(&self, id: DeviceId) -> Vec<DeviceId> {
        let below = |id: &DeviceId| {
            let device = self.graph.device(*id);
            matches!(device.kind, DeviceKind::Partition(_)).then(|| device.below[0])
        };
        std::iter::successors(below(&id), below).collect()
    }
}

/// What something lies on, and the disks of that, where those are partitions.
struct Lies {
    on: HashSet<DeviceId>,
    within: HashSet<DeviceId>,
}

impl Lies {
    /// What both lie on: the same, or one on a disk of which the other has a partition. Two partitions have nothing in common.
    fn shares(&self, other: &Lies) -> Option<DeviceId> {
        let both =
            |one: &HashSet<DeviceId>, other: &HashSet<DeviceId>| one.intersection(other).min().copied();
        both(&self.on, &other.on)
            .or_else(|| both(&self.on, &other.within))
            .or_else(|| both(&self.within, &other.on))
    }
}

/// Whether a device is part of an array or a group, be it there or not.
pub(crate) fn belongs(device: &Device) -> bool {
    matches!(
        device.content,
        Content::MdMember(_) | Content::DamagedMember(_) | Content::FirmwareMember(_) | Content::Pv(_)
    )
}

/// Whether a device keeps to itself what it stands upon.
pub(crate) fn makes_use(device: &Device) -> bool {
    !matches!(device.kind, DeviceKind::Disk { .. } | DeviceKind::Partition(_))
}

/// The device below all of which nothing must be written while `id` is in use: the first, from `id` down, that makes use of what it
/// stands upon.
fn claiming(graph: &Graph, id: DeviceId) -> DeviceId {
    let mut top = id;
    while let (false, [only]) = (makes_use(graph.device(top)), &graph.device(top).below[..]) {
        top = *only;
    }
    top
}

//! The disks of a group that is to be changed: opened and locked, with everything that speaks against changing it.

use std::sync::Arc;

use blockwork_engine::{Layer, SECTOR};
use blockwork_format::lvm2::vg::VolumeGroup;
use blockwork_format::lvm2::{AreaHeader, DiskArea, Extension, Label, PvHeader, Section, Uuid};
use blockwork_format::{ErrorKind, FormatError, Source, escape};

use super::commit::Commit;
use super::draft::{Author, Draft, NewPv, there_are};
use super::error::EditError;
use crate::assembly::Assembly;
use crate::graph::{Content, DeviceId, DeviceKind, GroupId};
use crate::held::held;
use crate::lvm::{Group, Pv};
use crate::newcomer::{identity, partition_of};
use crate::plan::Plan;
use crate::rounds::claims;

/// The sector in which new labels lie.
const LABEL_SECTOR: u64 = 1;
/// How much is zeroed at the end of a disk whose former content is given up, bytes: what signatures there are lies in it.
const TAIL_BYTES: u64 = 1 << 20;

/// A group whose disks are open, and which may be changed.
pub struct GroupEditor {
    assembly: Assembly,
    draft: Draft,
    sites: Vec<Site>,
    is_planned: bool,
}

/// A physical volume, and what becomes of it.
pub(super) struct Site {
    pub(super) title: String,
    pub(super) device: DeviceId,
    pub(super) layer: Arc<dyn Layer>,
    pub(super) label: Label,
    /// Of the areas that are in use.
    pub(super) areas: Vec<AreaHeader>,
    pub(super) role: Role,
}

/// What becomes of a physical volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// It is in the group, and stays.
    Member,
    /// It joins: so many bytes at its start and at its end are zeroed first.
    New { head: u64, tail: u64 },
    /// It leaves, and is a physical volume of no group afterwards.
    Leaving,
}

impl GroupEditor {
    /// Opens a group that is on these disks.
    ///
    /// # Errors
    ///
    /// A disk cannot be opened or is in use; no such group; or something about it says that it must not be changed.
    pub fn open(disks: &[String], name: &str, author: Author) -> Result<GroupEditor, EditError> {
        let mut assembly = assemble(disks)?;
        let group = find(&assembly, name)?;
        let Opened { draft, sites } = open(&mut assembly, group, author)?;
        Ok(GroupEditor { assembly, draft, sites, is_planned: false })
    }

    /// A new group on these disks, without physical volumes yet.
    ///
    /// # Errors
    ///
    /// A disk cannot be opened or is in use; the name is taken by a group on these disks; or a name, tag or size that cannot be.
    pub fn create(
        disks: &[String],
        name: &str,
        extent_sectors: u64,
        tags: &[String],
        author: Author,
    ) -> Result<GroupEditor, EditError> {
        let draft = Draft::new_group(name, extent_sectors, tags, author)?;
        let assembly = assemble(disks)?;
        if assembly.graph().groups.iter().any(|group| group.text.name == name) {
            return Err(EditError::Exists { what: "the volume group", name: name.to_owned() });
        }
        Ok(GroupEditor { assembly, draft, sites: Vec::new(), is_planned: false })
    }

    /// The group.
    pub fn draft(&self) -> &Draft {
        &self.draft
    }

    /// The group, to be changed.
    pub fn draft_mut(&mut self) -> &mut Draft {
        &mut self.draft
    }

    /// The disks that are open: they stay locked as long as this lives.
    pub fn assembly(&self) -> &Assembly {
        &self.assembly
    }

    pub(super) fn assembly_mut(&mut self) -> &mut Assembly {
        &mut self.assembly
    }

    /// Its disks, and the group.
    pub(super) fn parts(&mut self) -> (&mut Assembly, &Draft) {
        (&mut self.assembly, &self.draft)
    }

    /// Whether a device is a physical volume of the group already.
    pub fn has_device(&self, name: &str) -> bool {
        let id = self.device(name);
        id.is_some_and(|id| self.sites.iter().any(|site| site.device == id && site.role != Role::Leaving))
    }

    /// Adds a device: a disk as it was given, or a partition, array or volume by its name. Its extents.
    ///
    /// # Errors
    ///
    /// No such device; it is too small; or it holds something, and `force` does not say that this may go.
    pub fn add_device(&mut self, name: &str, force: bool) -> Result<u64, EditError> {
        self.check_resizeable()?;
        let Some(id) = self.device(name) else {
            let devices = self.assembly.graph().iter().filter(|(_, device)| device.is_offered);
            let there_are = there_are(devices.map(|(_, device)| device.title().to_owned()));
            return Err(EditError::Absent { what: "device", name: name.to_owned(), there_are });
        };
        let title = self.assembly.graph().device(id).title().to_owned();
        if self.has_device(name) {
            let why = format!("it belongs to {} already", self.draft.group().name);
            return Err(EditError::disk(&title, why));
        }
        let wipe = self.check_content(id, &title, force)?;
        let layer = self
            .assembly
            .layer(id)
            .map_err(|why| EditError::disk(&title, format!("it cannot be used: {why}")))?;
        self.check_device(id, &title, &*layer)?;
        let (label, areas, role) = self.new_label(id, &title, &*layer, wipe)?;
        let pv = NewPv {
            id: label.pv.id,
            device_hint: title.clone(),
            dev_sectors: layer.sectors().0,
            pe_start: label.pv.data_areas.first().map_or(0, |area| area.offset / SECTOR),
        };
        let extents = self.draft.add_pv(&pv)?;
        self.sites.push(Site { title, device: id, layer, label, areas, role });
        Ok(extents)
    }

    /// Takes a device out of the group: by its name, or by its physical volume's UUID.
    ///
    /// # Errors
    ///
    /// It does not belong to the group, or volumes lie on it, or it has the only metadata.
    pub fn remove_device(&mut self, name: &str) -> Result<(), EditError> {
        self.check_resizeable()?;
        let (id, uuid) = (self.device(name), Uuid::from_text(name));
        let is_it = |site: &Site| Some(site.device) == id || Some(site.label.pv.id) == uuid;
        let Some(at) = self.sites.iter().position(|site| is_it(site) && site.role == Role::Member) else {
            let there_are = there_are(self.sites.iter().map(|site| site.title.clone()));
            let what = "physical volume of the group on";
            return Err(EditError::Absent { what, name: name.to_owned(), there_are });
        };
        let others =
            self.sites.iter().enumerate().filter(|(other, site)| *other != at && site.role != Role::Leaving);
        if self.draft.group().pvs.len() > 1 && others.map(|(_, site)| site.areas.len()).sum::<usize>() == 0 {
            let why = "it has the only metadata of the group; add another disk first";
            return Err(EditError::disk(&self.sites[at].title, why));
        }
        self.draft.remove_pv(&self.sites[at].label.pv.id, &self.sites[at].title)?;
        self.sites[at].role = Role::Leaving;
        Ok(())
    }

    /// What there is to write. Nothing has been written when this has failed.
    ///
    /// # Errors
    ///
    /// An area has no room for the text, or no area is left.
    pub fn plan(&mut self) -> Result<Commit, EditError> {
        let commit = Commit::new(&self.draft, &self.sites)?;
        self.is_planned = true;
        Ok(commit)
    }

    /// The number of the text: of the one on the disks, or of the one that was planned.
    pub fn seqno(&self) -> u64 {
        self.draft.group().seqno + u64::from(self.is_planned)
    }

    fn device(&self, name: &str) -> Option<DeviceId> {
        let graph = self.assembly.graph();
        let disk = |wanted: &str| {
            let is_it = |kind: &DeviceKind| matches!(kind, DeviceKind::Disk { spec, .. } if spec == wanted);
            graph.iter().find(|(_, device)| device.is_offered && is_it(&device.kind)).map(|(id, _)| id)
        };
        disk(name).or_else(|| graph.find(name)).or_else(|| {
            let (path, number) = partition_of(name)?;
            let disk = disk(path)?;
            let is_it =
                |kind: &DeviceKind| matches!(kind, DeviceKind::Partition(own) if own.number == number);
            graph.iter().find(|(_, device)| is_it(&device.kind) && *device.below == [disk]).map(|(id, _)| id)
        })
    }

    fn check_resizeable(&self) -> Result<(), EditError> {
        let vg = self.draft.group();
        if vg.flags.has("RESIZEABLE") {
            return Ok(());
        }
        Err(EditError::group(&vg.name, "it may not get other disks; `vgchange --resizeable y` changes that"))
    }

    /// Whether what a device holds may go; and whether there is anything to be wiped.
    fn check_content(&mut self, id: DeviceId, title: &str, force: bool) -> Result<bool, EditError> {
        let graph = self.assembly.graph();
        let refuse = |why: String| Err(EditError::disk(title, why));
        let is_listed = |pv: &Pv, text: &VolumeGroup| {
            let now = graph.groups.iter().find(|group| group.text.id == text.id);
            now.is_some_and(|group| group.text.pv(&pv.label.pv.id).is_some())
        };
        // A cut while it left a group may have left the old text on it: whether that counts, the others of the group tell.
        if let Content::Pv(pv) = &graph.device(id).content
            && let Some(text) = pv.newest().filter(|text| is_listed(pv, text))
        {
            let name = escape(&text.name);
            return refuse(format!(
                "it is a physical volume of the group {name}; take it out of that first, with `blockwork vg reduce`"
            ));
        }
        let above = graph.above();
        let user = above.of(id).map(|above| graph.device(above)).find(|above| match above.kind {
            // Its superblock is a signature like any other: whoever serves the array has locked its members.
            DeviceKind::Array(_) => !force,
            DeviceKind::Partition(_) => !matches!(above.content, Content::Nothing),
            _ => true,
        });
        if let Some(user) = user {
            let name = escape(&user.name);
            let how = match user.kind {
                DeviceKind::Array(_) => "add --force, or take it away with `blockwork md zero-superblock`",
                _ => "remove it first",
            };
            return refuse(format!("{name} lies on it; if that may go, {how}"));
        }
        if let Content::Pv(pv) = &graph.device(id).content
            && !pv.label.pv.in_use()
            && pv.newest().is_none()
        {
            // One that belongs to no group is what such a group is made of.
            return Ok(force);
        }
        match self.held(id)? {
            Some(_) if force => Ok(true),
            Some(held) => refuse(format!("it holds {held}; add --force if that may be destroyed")),
            None => Ok(force),
        }
    }

    /// What a device holds, in words.
    fn held(&mut self, id: DeviceId) -> Result<Option<String>, EditError> {
        let title = self.assembly.graph().device(id).title().to_owned();
        let layer = self.assembly.layer(id).map_err(|why| EditError::disk(&title, why))?;
        let block = layer.limits().logical_block_size;
        let content = std::mem::take(&mut self.assembly.graph.devices[id.0].content);
        let held = self.assembly.read(&*layer, |source| held(&content, source, block));
        self.assembly.graph.devices[id.0].content = content;
        Ok(held)
    }

    fn check_device(&self, id: DeviceId, title: &str, layer: &dyn Layer) -> Result<(), EditError> {
        let graph = self.assembly.graph();
        if let Some(why) = &graph.device(id).read_only {
            return Err(EditError::disk(title, format!("it must not be written: {why}")));
        }
        let below = graph.all_below(id);
        if self
            .sites
            .iter()
            .any(|site| below.contains(&site.device) || graph.all_below(site.device).contains(&id))
        {
            let why = format!(
                "it and another physical volume of {} are parts of each other",
                self.draft.group().name
            );
            return Err(EditError::disk(title, why));
        }
        let block = layer.limits().logical_block_size;
        let extent = self.draft.group().extent_sectors * SECTOR;
        if extent < block.into() {
            let why = format!(
                "its logical blocks have {block} bytes, and extents of {} have {extent}: volumes would begin within a block, and could not be \
                 used; give the group extents of {block} bytes at least (--physical-extent-size)",
                self.draft.group().name
            );
            return Err(EditError::disk(title, why));
        }
        let other = self.sites.iter().find(|site| site.layer.limits().logical_block_size != block);
        other.map_or(Ok(()), |other| {
            let why = format!(
                "its logical blocks have {block} bytes, and those of {} have {}: file systems on volumes over both could not be \
                 mounted",
                escape(&other.title),
                other.layer.limits().logical_block_size
            );
            Err(EditError::disk(title, why))
        })
    }

    /// The label of a device that joins: its own where it is a physical volume of no group, otherwise a new one.
    fn new_label(
        &mut self,
        id: DeviceId,
        title: &str,
        layer: &dyn Layer,
        wipe: bool,
    ) -> Result<(Label, Vec<AreaHeader>, Role), EditError> {
        let bytes = layer.sectors().bytes();
        if let Content::Pv(pv) = &self.assembly.graph().device(id).content
            && !wipe
            && can_be_kept(&pv.label.pv, bytes)
        {
            let areas =
                pv.label.pv.metadata_areas.iter().filter_map(|area| AreaHeader::new(*area).ok()).collect();
            return Ok((pv.label.clone(), areas, Role::New { head: 0, tail: 0 }));
        }
        let data = data_offset(layer);
        if bytes <= data {
            let why = format!(
                "it has {bytes} bytes, and the first extent would begin at {data}; give a larger one"
            );
            return Err(EditError::disk(title, why));
        }
        let pv = PvHeader::new((self.draft.author.ids)(), bytes, data);
        let area = AreaHeader::new(pv.metadata_areas[0]);
        let area = area.map_err(|source| EditError::metadata(title, source))?;
        let tail = if wipe { TAIL_BYTES.min(bytes - data) } else { 0 };
        Ok((Label { sector: LABEL_SECTOR, pv }, vec![area], Role::New { head: data, tail }))
    }
}

/// A group as it is on its disks, to be changed.
pub(crate) struct Opened {
    pub(crate) draft: Draft,
    pub(super) sites: Vec<Site>,
}

impl Opened {
    /// What there is to write.
    pub(crate) fn commit(&self) -> Result<Commit, EditError> {
        Commit::new(&self.draft, &self.sites)
    }

    /// Whether the logical blocks of all disks have one size.
    pub(crate) fn has_one_block(&self) -> bool {
        let blocks: Vec<u32> = self.sites.iter().map(|site| site.layer.limits().logical_block_size).collect();
        blocks.windows(2).all(|two| two[0] == two[1])
    }
}

/// The group of that name.
pub(crate) fn find(assembly: &Assembly, name: &str) -> Result<GroupId, EditError> {
    let groups = &assembly.graph().groups;
    groups.iter().position(|group| group.name == name).map(GroupId).ok_or_else(|| {
        let mut there_are = there_are(groups.iter().map(|group| group.name.clone()));
        if let Some(why) = of_unknown_group(assembly) {
            there_are += &format!("; {why}");
        }
        EditError::Absent { what: "volume group", name: name.to_owned(), there_are }
    })
}

/// What a physical volume says that belongs to a group which none of those here is: the first of them.
fn of_unknown_group(assembly: &Assembly) -> Option<String> {
    let graph = assembly.graph();
    graph.iter().find_map(|(_, device)| match &device.content {
        Content::Pv(pv) if !graph.groups.iter().any(|group| claims(group, pv)) => {
            Some(format!("{}: {}", escape(device.title()), pv.of_unknown_group()?))
        }
        _ => None,
    })
}

/// Reads what there is of a group that is assembled.
pub(crate) fn open(assembly: &mut Assembly, group: GroupId, author: Author) -> Result<Opened, EditError> {
    let found = &assembly.graph().groups[group.0];
    check_group(assembly, found)?;
    let (name, text) = (found.name.clone(), found.text.clone());
    let devices: Vec<DeviceId> = found.pvs.iter().filter_map(|pv| pv.as_ref().ok().copied()).collect();
    let mut sites = Vec::with_capacity(devices.len());
    let mut tree = None;
    for device in devices {
        sites.push(member(assembly, device, &text, &mut tree)?);
    }
    let tree = tree.ok_or_else(|| {
        EditError::group(&name, "its metadata cannot be read again: is somebody else changing it?")
    })?;
    let draft = Draft::of(tree, author).map_err(|source| EditError::metadata(&name, source))?;
    Ok(Opened { draft, sites })
}

/// How a logical volume is read and written that a group had when it was assembled.
pub(super) fn layer_of(assembly: &mut Assembly, draft: &Draft, lv: &str) -> Result<Arc<dyn Layer>, String> {
    let id = draft.group().id;
    let groups = &assembly.graph().groups;
    let group = groups.iter().find(|group| group.text.id == id).ok_or("its group is not assembled")?;
    let device = group.text.lv(lv).and_then(|lv| group.lv(lv));
    let device = device.ok_or_else(|| format!("{} is not assembled", escape(lv)))?;
    assembly.layer(device)
}

/// Opens disks for writing: whoever else has them is told of. Of `PATH/NUMBER` that is the disk; what is neither is a device on them.
fn assemble(devices: &[String]) -> Result<Assembly, EditError> {
    let mut disks: Vec<String> = Vec::new();
    for device in devices {
        let is_disk = |spec: &str| {
            identity(spec).is_some() || ["null:", "memory:"].iter().any(|kind| spec.starts_with(kind))
        };
        let partition = partition_of(device).map(|(disk, _)| disk).filter(|disk| is_disk(disk));
        let disk = if is_disk(device) { Some(device.as_str()) } else { partition };
        // A name of a device on the other disks has no file; what else has none is told when it is looked for.
        let disk = disk.or_else(|| (!device.contains('/')).then_some(device.as_str()));
        disks.extend(disk.filter(|disk| !disks.iter().any(|known| known == disk)).map(str::to_owned));
    }
    Ok(Assembly::open(Plan { disks, ..Plan::default() })?)
}

/// Why a group must not be changed, if anything says so.
fn check_group(assembly: &Assembly, group: &Group) -> Result<(), EditError> {
    let refuse = |why: String| Err(EditError::group(&group.name, why));
    if let Some(why) = &group.refused {
        return refuse(why.clone());
    }
    let missing: Vec<&String> = group.pvs.iter().filter_map(|pv| pv.as_ref().err()).collect();
    if let Some(why) = missing.first() {
        return refuse(format!("{why}; a change needs all disks of the group, each once and up to date"));
    }
    if let Some(why) = &group.read_only {
        return refuse(format!("it must not be changed: {why}"));
    }
    if let Some(lv) = group.text.lvs.iter().find(|lv| lv.flags.has("PVMOVE") || lv.flags.has("LOCKED")) {
        let name = escape(&lv.name);
        return refuse(format!(
            "{name} is being moved by `pvmove`: let Linux finish that, or `pvmove --abort` it"
        ));
    }
    for device in group.pvs.iter().flatten().map(|pv| assembly.graph().device(*pv)) {
        if let Some(why) = &device.read_only {
            return Err(EditError::disk(device.title(), format!("it must not be written: {why}")));
        }
    }
    Ok(())
}

/// A physical volume of the group as it is now. If it has the group's text, that goes into `tree`, unless one is there already.
fn member(
    assembly: &mut Assembly,
    device: DeviceId,
    text: &VolumeGroup,
    tree: &mut Option<Section>,
) -> Result<Site, EditError> {
    let title = assembly.graph().device(device).title().to_owned();
    let Content::Pv(pv) = &assembly.graph().device(device).content else {
        unreachable!("a group is made of physical volumes")
    };
    let label = pv.label.clone();
    let layer = assembly.layer(device).map_err(|why| EditError::disk(&title, why))?;
    let read = assembly.read(&*layer, |source| read_areas(source, &label.pv, text, tree));
    let areas = read.map_err(|source| EditError::metadata(&title, source))?;
    Ok(Site { title, device, layer, label, areas, role: Role::Member })
}

/// The areas that are in use. One whose header is damaged is taken for an empty one. As long as `tree` is none, the group's text is looked for in
/// them: of a hundred disks, one is read to its end.
fn read_areas(
    source: &dyn Source,
    pv: &PvHeader,
    text: &VolumeGroup,
    tree: &mut Option<Section>,
) -> Result<Vec<AreaHeader>, FormatError> {
    let mut areas = Vec::new();
    for area in &pv.metadata_areas {
        let header = match AreaHeader::read(source, *area) {
            Ok(header) if header.ignored() => continue,
            Ok(header) => header,
            Err(error) if matches!(error.kind, ErrorKind::Io(_)) => return Err(error),
            // Where it does not lie on the disk beside the extents, nothing is written to it.
            Err(_) if lies_beside_data(*area, pv, source.size()) => AreaHeader::new(*area)?,
            Err(error) => return Err(error),
        };
        if tree.is_none()
            && let Some(location) = header.committed()
            && let Ok(found) = header.read_text(source, &location)
            && let Ok(found) = Section::parse(&found)
            && VolumeGroup::from_tree(&found)
                .is_ok_and(|found| found.seqno == text.seqno && found.id == text.id)
        {
            *tree = Some(found);
        }
        areas.push(whole(header));
    }
    Ok(areas)
}

/// A header whose slots can be gone by: one that names no place in its ring is as good as none.
fn whole(header: AreaHeader) -> AreaHeader {
    let fresh = || AreaHeader::new(header.area).unwrap_or_else(|_| header.clone());
    if header.is_whole() { header } else { fresh() }
}

fn lies_beside_data(area: DiskArea, pv: &PvHeader, size: u64) -> bool {
    let ends_inside = area.offset.checked_add(area.size).is_some_and(|end| end <= size);
    let before = |data: &DiskArea| area.offset + area.size <= data.offset;
    ends_inside && area.offset >= PvHeader::AREA_OFFSET && pv.data_areas.iter().all(before)
}

/// Whether the label of a physical volume of no group can stay.
fn can_be_kept(pv: &PvHeader, device_bytes: u64) -> bool {
    let known = pv.extension.as_ref().is_some_and(|extension| extension.version == Extension::VERSION);
    let areas_fit = pv.metadata_areas.iter().all(|area| lies_beside_data(*area, pv, device_bytes));
    known
        && !pv.in_use()
        && pv.device_bytes == device_bytes
        && pv.data_areas.len() == 1
        && !pv.metadata_areas.is_empty()
        && areas_fit
}

/// Where extents begin, bytes: at 1 MiB, or where the device's best I/O begins behind that.
fn data_offset(layer: &dyn Layer) -> u64 {
    let best = u64::from(layer.limits().io_opt);
    if best > 1 && best.is_multiple_of(SECTOR) {
        PvHeader::DATA_OFFSET.next_multiple_of(best)
    } else {
        PvHeader::DATA_OFFSET
    }
}

//! A volume group that is being changed: its text as a tree, and the checked view of it.
//!
//! Invariants: (1) the view is that of the tree, after every change and after every refusal; so whatever is committed can be
//! read again. (2) Keys, sections and flags that are not known here stay as they are. (3) Data that has to be written before the
//! new text counts lies in extents that are free in the old one.

use std::fmt;

use blockwork_format::lvm2::vg::{Area, EXTENTS_MAX, LvIndex};
use blockwork_format::lvm2::{Node, Section, Style, Uuid, VolumeGroup, names};
use blockwork_format::{ErrorKind, FormatError, escape};
use serde::{Deserialize, Serialize};

use super::allocate::FreeExtents;
use super::data::DataWrite;
use super::error::{EditError, bytes_shown};
use super::section::{BEFORE_TAGS, Keys, number, strings};
use crate::lvm::verdict::split_off;

/// Smallest extent, sectors: as LVM.
const EXTENT_MIN: u64 = 2;
/// Largest extent, sectors.
const EXTENT_MAX: u64 = u32::MAX as u64;
/// Extents that are no power of two are multiples of this, sectors.
const EXTENT_UNIT: u64 = 256;

/// The last seqno: LVM counts in 32 bits.
const SEQNO_MAX: u64 = u32::MAX as u64;

/// The section of volumes that are gone.
const HISTORY: &str = "historical_logical_volumes";

/// Names that an error shows.
const NAMES_SHOWN: usize = 20;

/// Who changes a group, when, and by which command: what the text says about its writer.
pub struct Author {
    /// Name of this host.
    pub host: String,
    /// Seconds since 1970.
    pub time: i64,
    /// The command line.
    pub command: String,
    /// New identifiers; random ones, unless for a test.
    pub ids: Box<dyn FnMut() -> Uuid>,
}

impl fmt::Debug for Author {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Author({} at {} by {})", self.host, self.time, self.command)
    }
}

/// A PV that joins a group.
#[derive(Debug, Clone)]
pub struct NewPv {
    /// Its identifier, as in its label.
    pub id: Uuid,
    /// What the text says about where it was found. Only a hint.
    pub device_hint: String,
    /// Size of its device, sectors.
    pub dev_sectors: u64,
    /// Where its first extent begins, sectors.
    pub pe_start: u64,
}

/// What is done with tags.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TagChange {
    /// Tags to add; those that are there already stay.
    #[serde(default)]
    pub add: Vec<String>,
    /// Tags to take away; those that are not there are no error, as for LVM.
    #[serde(default)]
    pub remove: Vec<String>,
}

impl TagChange {
    fn check(&self) -> Result<(), EditError> {
        if self.add.is_empty() && self.remove.is_empty() {
            let (found, expected) = ("none".into(), "one at least".into());
            return Err(EditError::Value { what: "the tags to be added or removed:", found, expected });
        }
        check_tags(&self.add)
    }
}

/// A volume group that is being changed. See the module's head.
#[derive(Debug)]
pub struct Draft {
    tree: Section,
    vg: VolumeGroup,
    pub(super) author: Author,
    pub(super) data: Vec<DataWrite>,
}

impl Draft {
    /// A group without PVs and LVs yet.
    ///
    /// # Errors
    ///
    /// A name, a tag or an extent size that LVM does not take.
    pub fn new_group(
        name: &str,
        extent_sectors: u64,
        tags: &[String],
        mut author: Author,
    ) -> Result<Draft, EditError> {
        check_group_name(name)?;
        check_tags(tags)?;
        check_extent(extent_sectors)?;
        let id = (author.ids)();
        let vg = Keys::default()
            .text("id", &id.to_string())
            .number("seqno", 0)
            .text("format", "lvm2")
            .strings("status", ["RESIZEABLE", "READ", "WRITE"])
            .strings("flags", [] as [&str; 0])
            .tags(tags)
            .number("extent_size", extent_sectors)
            .number("max_lv", 0)
            .number("max_pv", 0)
            .number("metadata_copies", 0)
            .section("physical_volumes", Section::default())
            .done();
        let tree = Keys::default()
            .section(name, vg)
            .text("contents", "Text Format Volume Group")
            .number("version", 1)
            .done();
        Draft::of(tree, author).map_err(|source| EditError::metadata(name, source))
    }

    /// A group as its text describes it.
    ///
    /// # Errors
    ///
    /// The tree describes none, or one that contradicts itself.
    pub fn of(tree: Section, author: Author) -> Result<Draft, FormatError> {
        let vg = VolumeGroup::from_tree(&tree)?;
        if vg.seqno >= SEQNO_MAX {
            let (found, expected) = (vg.seqno, format!("less than {SEQNO_MAX}, as there is no next one"));
            return Err(FormatError::line(ErrorKind::Limit, "LVM2 metadata", 1, "seqno", found, expected));
        }
        Ok(Draft { tree, vg, author, data: Vec::new() })
    }

    /// The group as it is now.
    pub fn group(&self) -> &VolumeGroup {
        &self.vg
    }

    /// A string that the group's section has, where the view does not.
    pub(super) fn group_text(&self, key: &str) -> Option<String> {
        match self.tree.section(&self.vg.name)?.get(key)? {
            Node::Value(value) => value.as_str().map(str::to_owned),
            Node::Array(_) | Node::Section(_) => None,
        }
    }

    /// How many of something the group may have at most, where its text says so: 0 says that there is no limit.
    pub(super) fn group_limit(&self, key: &str) -> Option<usize> {
        match self.tree.section(&self.vg.name)?.get(key)? {
            Node::Value(value) => usize::try_from(value.as_integer()?).ok().filter(|most| *most > 0),
            Node::Array(_) | Node::Section(_) => None,
        }
    }

    /// What LVM remembers of thin volumes that are gone (`record_lvs_history`): a section for each, by its name.
    pub(super) fn history(&self) -> Option<&Section> {
        self.tree.section(&self.vg.name)?.section(HISTORY)
    }

    /// What no volume uses.
    pub fn free(&self) -> FreeExtents {
        FreeExtents::of(&self.vg)
    }

    /// An amount of extents, for people.
    pub fn extents_shown(&self, extents: u64) -> String {
        let bytes = extents.saturating_mul(self.vg.extent_sectors).saturating_mul(512);
        let s = if extents == 1 { "" } else { "s" };
        format!("{extents} extent{s} ({})", bytes_shown(bytes))
    }

    /// A volume cannot have the size that was asked for.
    pub(super) fn too_large(&self, found: String) -> EditError {
        let most = self.vg.extents_max();
        let expected = if most < EXTENTS_MAX {
            "less than 8 EiB".to_owned()
        } else {
            format!("at most {}, {}", self.extents_shown(most), self.why_extents_max())
        };
        EditError::Value { what: "the size", found, expected }
    }

    /// Why there are no more extents, and what helps.
    fn why_extents_max(&self) -> String {
        let is_new = self.vg.seqno == 0;
        let remedy = if is_new { "--physical-extent-size" } else { "`vgchange --physicalextentsize`" };
        format!("as LVM counts them in 32 bits; give the group larger ones ({remedy})")
    }

    /// LVM refuses a PV of more extents than it can count, and one that would give the group more.
    fn check_extents(&self, pv: &NewPv, extents: u64) -> Result<(), EditError> {
        let all = self.vg.pvs.iter().fold(extents, |sum, pv| sum.saturating_add(pv.pe_count));
        let (who, found) = match () {
            () if extents > EXTENTS_MAX => ("it", extents),
            () if all > EXTENTS_MAX => ("the group", all),
            () => return Ok(()),
        };
        let (found, most) = (self.extents_shown(found), self.extents_shown(EXTENTS_MAX));
        let why =
            format!("{who} would have {found}, and may have {most} at most, {}", self.why_extents_max());
        Err(EditError::disk(&pv.device_hint, why))
    }

    /// The text of the change, without the NUL that ends it: with the next seqno, and who made it.
    pub fn text(&self) -> Vec<u8> {
        let mut tree = self.tree.clone();
        let vg = tree.section_mut(&self.vg.name).expect("the group's section");
        vg.set_behind(&["id"], "seqno", number(self.vg.seqno + 1));
        let described = format!("Write from {}.", self.author.command).replace('\0', " ");
        tree.set("description", described.as_str().into());
        tree.set("creation_host", self.author.host.as_str().into());
        tree.set("creation_time", self.author.time.into());
        tree.sort_for_disk();
        tree.print(Style::Disk)
    }

    /// Adds a PV with all extents that it has room for; their number.
    ///
    /// # Errors
    ///
    /// It has no room for one, or is in the group, or that may have no more PVs or extents.
    pub fn add_pv(&mut self, pv: &NewPv) -> Result<u64, EditError> {
        if self.vg.pv(&pv.id).is_some() {
            return Err(EditError::Exists { what: "the physical volume", name: pv.id.to_string() });
        }
        if let Some(most) = self.group_limit("max_pv").filter(|most| self.vg.pvs.len() >= *most) {
            let why = format!(
                "it may have {most} physical volumes at most; `vgchange --maxphysicalvolumes` changes that"
            );
            return Err(EditError::group(&self.vg.name, why));
        }
        let extents = pv.dev_sectors.saturating_sub(pv.pe_start) / self.vg.extent_sectors;
        if extents == 0 {
            let why = format!(
                "it has {}, and an extent of {} from byte {} on does not fit; give a larger disk, or the group smaller extents \
                 (--physical-extent-size)",
                bytes_shown(pv.dev_sectors * 512),
                bytes_shown(self.vg.extent_sectors * 512),
                pv.pe_start * 512
            );
            return Err(EditError::disk(&pv.device_hint, why));
        }
        self.check_extents(pv, extents)?;
        let name = unused(|n| format!("pv{n}"), |name| self.vg.pvs.iter().any(|pv| pv.name == *name));
        let section = Keys::default()
            .text("id", &pv.id.to_string())
            .text("device", &pv.device_hint)
            .strings("status", ["ALLOCATABLE"])
            .strings("flags", [] as [&str; 0])
            .number("dev_size", pv.dev_sectors)
            .number("pe_start", pv.pe_start)
            .number("pe_count", extents)
            .done();
        self.change(|vg, _| {
            pv_list(vg).set(&name, Node::Section(section));
            Ok(extents)
        })
    }

    /// Takes a PV out of the group; `title`: what its disk is called here, for errors.
    ///
    /// # Errors
    ///
    /// Volumes lie on it, or it is the last one.
    pub fn remove_pv(&mut self, id: &Uuid, title: &str) -> Result<(), EditError> {
        let pv = self.vg.pv(id).ok_or_else(|| EditError::Absent {
            what: "physical volume",
            name: id.to_string(),
            there_are: there_are(self.vg.pvs.iter().map(|pv| pv.id.to_string())),
        })?;
        let is_on_it = |area: &Area| matches!(area, Area::Pv { pv: on, .. } if *on == pv);
        let on_it = self
            .vg
            .lvs
            .iter()
            .filter(|lv| lv.segments.iter().flat_map(|segment| segment.areas().0).any(is_on_it));
        let users = shown(on_it.map(|lv| lv.name.clone()));
        if !users.is_empty() {
            let why =
                format!("these volumes lie on it: {users}; remove them first, or move them with `pvmove`");
            return Err(EditError::disk(title, why));
        }
        if self.vg.pvs.len() == 1 {
            let why = format!("it is the last physical volume of {}", escape(&self.vg.name));
            return Err(EditError::disk(title, why));
        }
        let name = self.vg.pvs[pv.0].name.clone();
        self.change(|vg, _| {
            pv_list(vg).remove(&name);
            Ok(())
        })
    }

    /// Gives the group another name.
    ///
    /// # Errors
    ///
    /// A name that LVM does not take, by itself or with the names of the group's volumes.
    pub fn rename_group(&mut self, new: &str) -> Result<(), EditError> {
        check_group_name(new)?;
        if let Some((lv, why)) = self.vg.lvs.iter().find_map(|lv| {
            let why = names::refuse_volume(new, &lv.name).filter(|why| why.contains("too long"))?;
            Some((lv, why))
        }) {
            let why = format!("with its volume {}: {why}", lv.name);
            return Err(EditError::Name { what: "the volume group", name: new.to_owned(), why });
        }
        let old = self.vg.name.clone();
        self.change_tree(|tree, _| {
            tree.rename(&old, new);
            Ok(())
        })
    }

    /// Changes the group's tags.
    ///
    /// # Errors
    ///
    /// A tag that LVM does not take, or none at all.
    pub fn tag_group(&mut self, change: &TagChange) -> Result<(), EditError> {
        change.check()?;
        let tags = changed(&self.vg.tags, change);
        self.change(|vg, _| {
            set_tags(vg, &tags);
            Ok(())
        })
    }

    /// Changes a volume's tags.
    ///
    /// # Errors
    ///
    /// No such volume, a tag that LVM does not take, or none at all.
    pub fn tag_volume(&mut self, name: &str, change: &TagChange) -> Result<(), EditError> {
        change.check()?;
        let lv = self.visible(name)?;
        let tags = changed(&self.vg.lvs[lv.0].tags, change);
        self.change(|vg, _| {
            set_tags(lv_section(vg, name), &tags);
            Ok(())
        })
    }

    /// The volume of that name, which a person may name: no part of another one.
    pub(super) fn visible(&self, name: &str) -> Result<LvIndex, EditError> {
        let visible = self.vg.visible();
        let Some(lv) = self.vg.lv(name) else {
            let seen = self.vg.lvs.iter().zip(&visible).filter(|(_, visible)| **visible);
            return Err(EditError::Absent {
                what: "logical volume",
                name: format!("{}/{name}", self.vg.name),
                there_are: there_are(seen.map(|(lv, _)| lv.name.clone())),
            });
        };
        if visible[lv.0] {
            return Ok(lv);
        }
        let why = match self.vg.merged_into(lv) {
            Some(origin) => {
                format!("it is being merged into {}: name that one", escape(&self.vg.lvs[origin.0].name))
            }
            None => "it is a part of another volume: name that one".to_owned(),
        };
        Err(EditError::volume(name, why))
    }

    /// Images that were split off a RAID, and are to be put back, stay as they are.
    pub(super) fn check_not_split_off(&self, lv: LvIndex) -> Result<(), EditError> {
        match split_off(&self.vg, lv) {
            Some(why) => Err(EditError::volume(&self.vg.lvs[lv.0].name, why)),
            None => Ok(()),
        }
    }

    /// As long as an image may be put back into a RAID, that stays such a one as it fits into.
    pub(super) fn check_no_split_image(&self, raid: LvIndex) -> Result<(), EditError> {
        let Some(image) = self.vg.split_images(raid).next() else { return Ok(()) };
        let (group, image) = (escape(&self.vg.name), escape(&self.vg.lvs[image.0].name));
        let why = format!(
            "{image} was split off it, and what changes since is tracked; `lvconvert --merge {group}/{image}` puts that back first"
        );
        Err(EditError::volume(&self.vg.lvs[raid.0].name, why))
    }

    /// A name that a new volume may have.
    pub(super) fn check_new_name(&self, name: &str) -> Result<(), EditError> {
        if let Some(why) = names::refuse_volume(&self.vg.name, name) {
            return Err(EditError::Name { what: "the logical volume", name: name.to_owned(), why });
        }
        if self.vg.lv(name).is_some() {
            let name = format!("{}/{name}", self.vg.name);
            return Err(EditError::Exists { what: "the logical volume", name });
        }
        // LVM takes nobody by the name of one that it remembers.
        if self.history().is_some_and(|gone| gone.section(name).is_some()) {
            let name = format!("{}/{name}, which is gone and remembered,", self.vg.name);
            return Err(EditError::Exists { what: "the logical volume", name });
        }
        Ok(())
    }

    /// Changes the group's section.
    pub(super) fn change<T>(
        &mut self,
        act: impl FnOnce(&mut Section, &VolumeGroup) -> Result<T, EditError>,
    ) -> Result<T, EditError> {
        let name = self.vg.name.clone();
        self.change_tree(|tree, vg| act(tree.section_mut(&name).expect("the group's section"), vg))
    }

    fn change_tree<T>(
        &mut self,
        act: impl FnOnce(&mut Section, &VolumeGroup) -> Result<T, EditError>,
    ) -> Result<T, EditError> {
        let mut tree = self.tree.clone();
        let result = act(&mut tree, &self.vg)?;
        self.vg =
            VolumeGroup::from_tree(&tree).map_err(|source| EditError::metadata(&self.vg.name, source))?;
        self.tree = tree;
        Ok(result)
    }
}

/// The list of PVs of a group's section.
fn pv_list(vg: &mut Section) -> &mut Section {
    if vg.section("physical_volumes").is_none() {
        vg.set("physical_volumes", Node::Section(Section::default()));
    }
    vg.section_mut("physical_volumes").expect("it is there now")
}

/// The list of LVs of a group's section, which is there where there are LVs.
pub(super) fn lv_list(vg: &mut Section) -> &mut Section {
    if vg.section("logical_volumes").is_none() {
        let before: Vec<String> = vg.entries.iter().map(|entry| entry.key.clone()).collect();
        let before: Vec<&str> = before.iter().map(String::as_str).filter(|key| *key != HISTORY).collect();
        vg.set_behind(&before, "logical_volumes", Node::Section(Section::default()));
    }
    vg.section_mut("logical_volumes").expect("it is there now")
}

/// The section of an LV that is there.
pub(super) fn lv_section<'a>(vg: &'a mut Section, name: &str) -> &'a mut Section {
    lv_list(vg).section_mut(name).expect("a volume of the group")
}

fn set_tags(section: &mut Section, tags: &[String]) {
    if tags.is_empty() {
        section.remove("tags");
    } else {
        section.set_behind(BEFORE_TAGS, "tags", strings(tags));
    }
}

fn changed(tags: &[String], change: &TagChange) -> Vec<String> {
    let mut tags: Vec<String> = tags.iter().filter(|tag| !change.remove.contains(tag)).cloned().collect();
    for tag in &change.add {
        if !tags.contains(tag) {
            tags.push(tag.clone());
        }
    }
    tags
}

pub(super) fn check_tags(tags: &[String]) -> Result<(), EditError> {
    let wrong = tags.iter().find_map(|tag| Some((tag, names::refuse_tag(tag)?)));
    wrong.map_or(Ok(()), |(tag, why)| Err(EditError::Name { what: "the tag", name: tag.clone(), why }))
}

fn check_group_name(name: &str) -> Result<(), EditError> {
    let why = names::refuse_group(name);
    why.map_or(Ok(()), |why| Err(EditError::Name { what: "the volume group", name: name.to_owned(), why }))
}

fn check_extent(sectors: u64) -> Result<(), EditError> {
    let fits = sectors.is_power_of_two() || sectors.is_multiple_of(EXTENT_UNIT);
    if fits && (EXTENT_MIN..=EXTENT_MAX).contains(&sectors) {
        return Ok(());
    }
    let expected = "1 KiB to 2 TiB, a power of two or a multiple of 128 KiB".into();
    Err(EditError::Value { what: "--physical-extent-size", found: bytes_shown(sectors * 512), expected })
}

/// The first of a row of names that is not taken.
pub(super) fn unused(name: impl Fn(usize) -> String, taken: impl Fn(&String) -> bool) -> String {
    (0..).map(name).find(|name| !taken(name)).expect("there are more numbers than names")
}

/// Names of those there are, where what was looked for is none of them.
pub(super) fn there_are(names: impl Iterator<Item = String>) -> String {
    Some(shown(names)).filter(|names| !names.is_empty()).unwrap_or_else(|| "none".to_owned())
}

/// Some names, for an error.
pub(super) fn shown(names: impl Iterator<Item = String>) -> String {
    let mut all: Vec<String> = names.map(|name| escape(&name)).collect();
    let more = all.len().saturating_sub(NAMES_SHOWN);
    all.truncate(NAMES_SHOWN);
    let mut text = all.join(", ");
    if more > 0 {
        text += &format!(" and {more} more");
    }
    text
}

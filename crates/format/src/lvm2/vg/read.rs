//! From the tree to the structs of a VG: which keys there have to be, and of what kind. What spans several sections is
//! checked in `check`.

use std::collections::BTreeMap;
use std::fmt::Display;

use super::segment::{self, Segment, SegmentType};
use super::{Flags, LVS_MAX, Lv, LvIndex, NAME_MAX, Origin, PVS_MAX, Pv, PvIndex, Snapshot, VolumeGroup};
use crate::lvm2::text::{Entry, Node, Section, Value};
use crate::lvm2::{Uuid, text::PLACE};
use crate::{ErrorKind, FormatError, escape};

const CONTENTS: &str = "Text Format Volume Group";
const VERSION: i64 = 1;

/// The VG in a tree. There may be one only.
pub(super) fn volume_group(tree: &Section) -> Result<VolumeGroup, FormatError> {
    let text = Fields { section: tree, line: 1, path: Path { parent: None, name: "the text" } };
    if text.text("contents")?.as_deref().is_some_and(|found| found != CONTENTS) {
        return Err(text.wrong("contents", "another one", format!("\"{CONTENTS}\"")));
    }
    if let Some(version) = text.integer("version")?.filter(|version| *version != VERSION) {
        let error = text.error(ErrorKind::Unsupported, "version", version, VERSION);
        return Err(error);
    }
    let origin = Origin {
        description: text.text("description")?,
        host: text.text("creation_host")?,
        time: text.integer("creation_time")?,
    };
    let mut sections = tree.entries.iter().filter(|entry| entry.node.as_section().is_some());
    let (Some(entry), None) = (sections.next(), sections.next()) else {
        let found =
            format!("{} sections", tree.entries.iter().filter(|e| e.node.as_section().is_some()).count());
        return Err(text.wrong("volume group", found, "one section, with the name of the VG"));
    };
    let vg = text.below(None, entry).expect("a section, as it was found");
    vg.check_name()?;
    if let Some(format) = vg.text("format")?.filter(|format| format != "lvm2") {
        return Err(vg.error(ErrorKind::Unsupported, "format", escape(&format), "lvm2"));
    }
    let pvs = vg.members("physical_volumes", PVS_MAX, pv)?;
    let names = Names { pvs: index(pvs.iter().map(|pv| &pv.name)), lvs: lv_names(vg.section) };
    let lvs = vg.members("logical_volumes", LVS_MAX, |lv| logical_volume(lv, &names))?;
    let merging = |(place, lv): (usize, &Lv)| match lv.segments.first()?.kind {
        SegmentType::Thin { merge, .. } => Some((merge?, LvIndex(place))),
        _ => None,
    };
    let snapshot = |(tie, lv): (usize, &Lv)| match lv.segments.first()?.kind {
        SegmentType::Snapshot { origin, store, chunk_size, merging } => {
            Some(Snapshot { tie: LvIndex(tie), origin, store, chunk_size, merging })
        }
        _ => None,
    };
    let snapshots: Vec<Snapshot> = lvs.iter().enumerate().filter_map(snapshot).collect();
    let external_origin = |lv: &Lv| match lv.segments.first()?.kind {
        SegmentType::Thin { external_origin, .. } => external_origin,
        _ => None,
    };
    let split_off = split_off(&lvs);
    Ok(VolumeGroup {
        // The first one counts where several name the same store.
        by_store: snapshots.iter().enumerate().rev().map(|(place, one)| (one.store, place)).collect(),
        snapshots,
        external_origins: lvs.iter().filter_map(external_origin).collect(),
        merging_thins: lvs.iter().enumerate().filter_map(merging).collect(),
        split_off,
        name: entry.key.clone(),
        id: vg.uuid("id")?,
        seqno: vg.needed_number("seqno")?,
        flags: vg.flags()?,
        tags: vg.strings("tags")?,
        extent_sectors: vg.needed_number("extent_size")?,
        system_id: vg.text("system_id")?,
        lock_type: vg.text("lock_type")?,
        origin,
        lvs,
        pvs,
        repeated: None,
    })
}

/// The images that Linux leaves out of their RAID, each with that: seen, and not written.
fn split_off(lvs: &[Lv]) -> BTreeMap<LvIndex, LvIndex> {
    let mut found = BTreeMap::new();
    for (raid, lv) in lvs.iter().enumerate() {
        for segment in &lv.segments {
            let SegmentType::Raid { images, .. } = &segment.kind else { continue };
            let is_split_off = |image: &&LvIndex| {
                lvs.get(image.0).is_some_and(|image| image.flags.has("VISIBLE") && !image.writable())
            };
            found.extend(images.iter().filter(is_split_off).map(|image| (*image, LvIndex(raid))));
        }
    }
    found
}

/// What LVM writes where it could not find a PV.
const UNKNOWN_DEVICE: &str = "[unknown]";

fn pv(pv: &Fields<'_>) -> Result<Pv, FormatError> {
    let bootloader_area = match (pv.number("ba_start")?, pv.number("ba_size")?) {
        (Some(start), Some(size)) => Some((start, size)),
        _ => None,
    };
    Ok(Pv {
        name: pv.path.name.to_owned(),
        id: pv.uuid("id")?,
        device_hint: pv.text("device")?.filter(|hint| hint != UNKNOWN_DEVICE),
        device_id_type: pv.text("device_id_type")?,
        device_id: pv.text("device_id")?,
        flags: pv.flags()?,
        tags: pv.strings("tags")?,
        dev_sectors: pv.number("dev_size")?,
        pe_start: pv.needed_number("pe_start")?,
        pe_count: pv.needed_number("pe_count")?,
        bootloader_area,
        line: pv.line,
    })
}

fn logical_volume(lv: &Fields<'_>, names: &Names<'_>) -> Result<Lv, FormatError> {
    lv.check_name()?;
    let mut segments = Vec::new();
    for fields in lv.sections().filter(|fields| fields.path.name.starts_with("segment")) {
        segments.push(segment::read(&fields, names)?);
    }
    // LVM reads them in any order too.
    segments.sort_by_key(|segment: &Segment| segment.start_extent);
    let count = lv.needed_number("segment_count")?;
    if count == 0 || usize::try_from(count) != Ok(segments.len()) {
        let expected = format!("at least 1, and the number of segments ({})", segments.len());
        return Err(lv.wrong("segment_count", count, expected));
    }
    Ok(Lv {
        name: lv.path.name.to_owned(),
        id: lv.uuid("id")?,
        flags: lv.flags()?,
        tags: lv.strings("tags")?,
        creation_host: lv.text("creation_host")?,
        creation_time: lv.integer("creation_time")?,
        allocation_policy: lv.text("allocation_policy")?,
        read_ahead: lv.integer("read_ahead")?,
        segments,
        line: lv.line,
    })
}

/// The PVs and LVs that a segment may name.
pub(super) struct Names<'a> {
    pvs: BTreeMap<&'a str, usize>,
    lvs: BTreeMap<&'a str, usize>,
}

impl Names<'_> {
    pub(super) fn pv(&self, name: &str) -> Option<PvIndex> {
        self.pvs.get(name).copied().map(PvIndex)
    }

    pub(super) fn lv(&self, name: &str) -> Option<LvIndex> {
        self.lvs.get(name).copied().map(LvIndex)
    }
}

fn lv_names(vg: &Section) -> BTreeMap<&str, usize> {
    let entries = vg.section("logical_volumes").map_or(&[][..], |lvs| &lvs.entries);
    index(entries.iter().filter(|entry| entry.node.as_section().is_some()).map(|entry| &entry.key))
}

fn index<'a>(names: impl Iterator<Item = &'a String>) -> BTreeMap<&'a str, usize> {
    names.enumerate().map(|(i, name)| (name.as_str(), i)).collect()
}

/// Where a section is: its name, and those around it.
#[derive(Clone, Copy)]
pub(super) struct Path<'a> {
    parent: Option<&'a Path<'a>>,
    pub(super) name: &'a str,
}

impl Display for Path<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(parent) = self.parent {
            write!(f, "{parent}/")?;
        }
        f.write_str(&escape(self.name))
    }
}

/// A section whose keys are read.
pub(super) struct Fields<'a> {
    pub(super) section: &'a Section,
    pub(super) line: u64,
    pub(super) path: Path<'a>,
}

impl<'a> Fields<'a> {
    /// The section of an entry, where it is one.
    fn below<'b>(&'b self, parent: Option<&'b Fields<'b>>, entry: &'b Entry) -> Option<Fields<'b>> {
        let section = entry.node.as_section()?;
        let path = Path { parent: parent.map(|parent| &parent.path), name: &entry.key };
        Some(Fields { section, line: entry.line, path })
    }

    /// The sections in this one.
    pub(super) fn sections(&self) -> impl Iterator<Item = Fields<'_>> {
        self.section.entries.iter().filter_map(|entry| self.below(Some(self), entry))
    }

    fn child<'b>(&'b self, field: &'static str) -> Result<Option<Fields<'b>>, FormatError> {
        match self.section.entry(field) {
            None => Ok(None),
            Some(entry) => match self.below(Some(self), entry) {
                Some(fields) => Ok(Some(fields)),
                None => Err(self.wrong_at(entry, field, "no section", "a section")),
            },
        }
    }

    /// The sections in the section `list`, each read by `read`.
    fn members<T>(
        &self,
        list: &'static str,
        most: usize,
        read: impl Fn(&Fields<'_>) -> Result<T, FormatError>,
    ) -> Result<Vec<T>, FormatError> {
        let Some(list_fields) = self.child(list)? else { return Ok(Vec::new()) };
        let entries = &list_fields.section.entries;
        if entries.len() > most {
            return Err(self.error(ErrorKind::Limit, list, entries.len(), format!("at most {most}")));
        }
        list_fields.sections().map(|fields| read(&fields)).collect()
    }

    /// The values of a key: those of its array, or its only one.
    pub(super) fn values(&self, field: &'static str) -> Result<Option<(&Entry, &[Value])>, FormatError> {
        let Some(entry) = self.section.entry(field) else { return Ok(None) };
        match &entry.node {
            Node::Section(_) => Err(self.wrong_at(entry, field, "a section", "a value")),
            Node::Value(value) => Ok(Some((entry, std::slice::from_ref(value)))),
            Node::Array(values) => Ok(Some((entry, values))),
        }
    }

    fn value(&self, field: &'static str) -> Result<Option<(&Entry, &Value)>, FormatError> {
        match self.values(field)? {
            None => Ok(None),
            Some((entry, [value])) if matches!(entry.node, Node::Value(_)) => Ok(Some((entry, value))),
            Some((entry, _)) => Err(self.wrong_at(entry, field, "an array", "one value")),
        }
    }

    /// A string. Where it is no UTF-8, what is not is replaced: such strings are only shown.
    pub(super) fn text(&self, field: &'static str) -> Result<Option<String>, FormatError> {
        match self.value(field)? {
            None => Ok(None),
            Some((_, Value::String(bytes))) => Ok(Some(String::from_utf8_lossy(bytes).into_owned())),
            Some((entry, value)) => Err(self.wrong_at(entry, field, shown(value), "a string")),
        }
    }

    pub(super) fn needed_text(&self, field: &'static str) -> Result<String, FormatError> {
        self.text(field)?.ok_or_else(|| self.missing(field))
    }

    fn integer(&self, field: &'static str) -> Result<Option<i64>, FormatError> {
        let Some((entry, value)) = self.value(field)? else { return Ok(None) };
        let wrong = || self.wrong_at(entry, field, shown(value), "a whole number");
        value.as_integer().ok_or_else(wrong).map(Some)
    }

    /// A number that is not negative.
    pub(super) fn number(&self, field: &'static str) -> Result<Option<u64>, FormatError> {
        let Some(found) = self.integer(field)? else { return Ok(None) };
        let entry = self.section.entry(field).expect("it has a value");
        u64::try_from(found).map(Some).map_err(|_| self.wrong_at(entry, field, found, "at least 0"))
    }

    pub(super) fn needed_number(&self, field: &'static str) -> Result<u64, FormatError> {
        self.number(field)?.ok_or_else(|| self.missing(field))
    }

    pub(super) fn strings(&self, field: &'static str) -> Result<Vec<String>, FormatError> {
        let Some((entry, values)) = self.values(field)? else { return Ok(Vec::new()) };
        let string = |value: &Value| match value {
            Value::String(bytes) => Ok(String::from_utf8_lossy(bytes).into_owned()),
            _ => Err(self.wrong_at(entry, field, shown(value), "strings")),
        };
        values.iter().map(string).collect()
    }

    fn flags(&self) -> Result<Flags, FormatError> {
        if self.section.entry("status").is_none() {
            return Err(self.missing("status"));
        }
        Ok(Flags { status: self.strings("status")?, compatible: self.strings("flags")? })
    }

    fn uuid(&self, field: &'static str) -> Result<Uuid, FormatError> {
        let text = self.needed_text(field)?;
        let entry = self.section.entry(field).expect("it has a value");
        let wrong = || self.wrong_at(entry, field, escape(&text), "32 characters in groups of 6-4-4-4-4-4-6");
        Uuid::from_text(&text).ok_or_else(wrong)
    }

    /// The LV that a key names.
    pub(super) fn lv(&self, field: &'static str, names: &Names<'_>) -> Result<Option<LvIndex>, FormatError> {
        let Some(name) = self.text(field)? else { return Ok(None) };
        let entry = self.section.entry(field).expect("it has a value");
        let wrong = || self.wrong_at(entry, field, escape(&name), "the name of an LV");
        names.lv(&name).ok_or_else(wrong).map(Some)
    }

    pub(super) fn needed_lv(&self, field: &'static str, names: &Names<'_>) -> Result<LvIndex, FormatError> {
        self.lv(field, names)?.ok_or_else(|| self.missing(field))
    }

    fn check_name(&self) -> Result<(), FormatError> {
        let name = self.path.name;
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '_' | '.' | '-');
        let good = name.chars().all(allowed) && !name.starts_with('-') && !matches!(name, "" | "." | "..");
        if good && name.len() <= NAME_MAX {
            return Ok(());
        }
        let expected = format!("1 to {NAME_MAX} characters of a-zA-Z0-9+_.-, not starting with -");
        Err(self.wrong("name", escape(name), expected))
    }

    pub(super) fn missing(&self, field: &'static str) -> FormatError {
        self.wrong(field, "missing", "a value")
    }

    /// An error about this section.
    pub(super) fn wrong(
        &self,
        field: &'static str,
        found: impl Display,
        expected: impl Display,
    ) -> FormatError {
        self.error(ErrorKind::Invalid, field, found, expected)
    }

    /// An error about an entry of this section.
    pub(super) fn wrong_at(
        &self,
        entry: &Entry,
        field: &'static str,
        found: impl Display,
        expected: impl Display,
    ) -> FormatError {
        let found = format!("{found} (in {})", self.path);
        FormatError::line(ErrorKind::Invalid, PLACE, entry.line, field, found, expected)
    }

    pub(super) fn error(
        &self,
        kind: ErrorKind,
        field: &'static str,
        found: impl Display,
        expected: impl Display,
    ) -> FormatError {
        let line = self.section.entry(field).map_or(self.line, |entry| entry.line);
        FormatError::line(kind, PLACE, line, field, format!("{found} (in {})", self.path), expected)
    }
}

/// A value for an error.
pub(super) fn shown(value: &Value) -> String {
    escape(&format!("{value:?}"))
}

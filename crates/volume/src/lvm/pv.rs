//! What a device says of itself as a physical volume.

use std::sync::Arc;

use blockwork_format::lvm2::vg::VolumeGroup;
use blockwork_format::lvm2::{AreaHeader, DiskArea, Extension, Label};
use blockwork_format::{FormatError, Source};

use super::metadata::{NotUnderstood, Texts};

/// Metadata areas that are read of one physical volume. LVM makes two at most.
const AREAS_MAX: usize = 4;

/// A physical volume.
#[derive(Debug)]
pub struct Pv {
    /// Its label, with its UUID and the places of its areas.
    pub label: Label,
    /// What its metadata areas hold, in the order of the label.
    pub areas: Vec<Area>,
}

/// What a metadata area holds.
#[derive(Debug)]
pub enum Area {
    /// Nothing: none was written to it yet.
    Empty,
    /// Nothing that counts: LVM was told to leave it alone (`pvchange --metadataignore y`).
    Ignored,
    /// A text.
    Text(Arc<VolumeGroup>),
    /// Something that cannot be read, or is damaged.
    Damaged(FormatError),
    /// A whole text that is no description of a volume group to us.
    Refused(Box<NotUnderstood>),
}

impl Pv {
    /// Reads the areas that a label names.
    pub(crate) fn read(
        source: &dyn Source,
        label: Label,
        texts: &mut Texts,
        warnings: &mut Vec<String>,
    ) -> Pv {
        let named = &label.pv.metadata_areas;
        if named.len() > AREAS_MAX {
            let count = named.len();
            warnings.push(format!("its label names {count} metadata areas; only {AREAS_MAX} were read"));
        }
        if label.pv.device_bytes > source.size() {
            warnings.push(format!(
                "its label says that the physical volume has {} bytes, and the device has {}; was it cut?",
                label.pv.device_bytes,
                source.size()
            ));
        }
        let areas = named.iter().take(AREAS_MAX).map(|area| read_area(source, *area, texts)).collect();
        Pv { label, areas }
    }

    /// The texts of its areas.
    pub fn texts(&self) -> impl Iterator<Item = &Arc<VolumeGroup>> {
        self.areas.iter().filter_map(|area| match area {
            Area::Text(text) => Some(text),
            Area::Empty | Area::Ignored | Area::Damaged(_) | Area::Refused(_) => None,
        })
    }

    /// The newest of them.
    pub fn newest(&self) -> Option<&Arc<VolumeGroup>> {
        self.texts().max_by_key(|text| text.seqno)
    }

    /// Where it belongs to a group, what it takes to find that, if no other disk that is here tells.
    pub(crate) fn of_unknown_group(&self) -> Option<String> {
        let in_use = |extension: &Extension| extension.flags & Extension::IN_USE != 0;
        if !self.label.pv.extension.as_ref().is_some_and(in_use) {
            return None;
        }
        let (why, remedy) = match self.areas.iter().any(|area| matches!(area, Area::Ignored)) {
            true => (
                ", since its own area is ignored",
                "; `pvchange --metadataignore n` with them has LVM keep it on this one, too",
            ),
            false => ("", ""),
        };
        Some(format!(
            "it belongs to a volume group, and no disk here has usable metadata of that{why}: give the group's other disks as \
             well{remedy}"
        ))
    }

    /// What is wrong with its areas.
    pub fn problems(&self) -> impl Iterator<Item = &FormatError> {
        self.areas.iter().filter_map(|area| match area {
            Area::Damaged(error) => Some(error),
            Area::Refused(refused) => Some(&refused.error),
            Area::Empty | Area::Ignored | Area::Text(_) => None,
        })
    }
}

fn read_area(source: &dyn Source, area: DiskArea, texts: &mut Texts) -> Area {
    let header = match AreaHeader::read(source, area) {
        Ok(header) if header.ignored() => return Area::Ignored,
        Ok(header) => header,
        Err(error) => return Area::Damaged(error),
    };
    let Some(location) = header.committed() else { return Area::Empty };
    match header.read_text(source, &location).map(|text| texts.read(location.checksum, text)) {
        Err(error) => Area::Damaged(error),
        Ok(Err(refused)) => Area::Refused(refused),
        Ok(Ok(text)) => Area::Text(text),
    }
}

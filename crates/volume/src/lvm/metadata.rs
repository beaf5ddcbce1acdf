//! Texts of metadata areas, each of which is parsed once: all physical volumes of a group have the same one.

use std::collections::HashMap;
use std::sync::Arc;

use blockwork_format::FormatError;
use blockwork_format::lvm2::VolumeGroup;

/// What a text says.
pub(crate) type Read = Result<Arc<VolumeGroup>, Box<NotUnderstood>>;

/// A whole text that is no description of a volume group to us.
#[derive(Clone, Debug)]
pub struct NotUnderstood {
    /// Why.
    pub error: FormatError,
    /// Its number, if that can be told.
    pub seqno: Option<u64>,
}

/// All texts so far, by their CRC.
#[derive(Debug, Default)]
pub(crate) struct Texts {
    known: HashMap<u32, Vec<(Vec<u8>, Read)>>,
}

impl Texts {
    /// What the text says, which has that CRC.
    pub(crate) fn read(&mut self, crc: u32, text: Vec<u8>) -> Read {
        let known = self.known.entry(crc).or_default();
        if let Some((_, read)) = known.iter().find(|(bytes, _)| *bytes == text) {
            return read.clone();
        }
        let read = VolumeGroup::from_text(&text)
            .map(Arc::new)
            .map_err(|error| Box::new(NotUnderstood { error, seqno: VolumeGroup::seqno_in(&text) }));
        known.push((text, read.clone()));
        read
    }
}

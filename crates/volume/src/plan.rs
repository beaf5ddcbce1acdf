//! What is asked for: disks, tables, settings.

use blockwork_engine::Limits;

use crate::error::VolumeError;

/// A queue setting for leaves.
pub type LeafOption = (String, String);

/// What is to be opened, and how.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// DISK arguments: paths with options, `null:SIZE`, `memory:SIZE`.
    pub disks: Vec<String>,
    /// Table files.
    pub tables: Vec<String>,
    /// Nothing will be written, not even that an array is in use.
    pub read_only: bool,
    /// Queue settings for all leaves, by sysfs name.
    pub settings: Vec<LeafOption>,
    /// Take no locks: for looking at disks that may be in use.
    pub unlocked: bool,
    /// Look into logical volumes at once: they may be the disks of other machines. Otherwise this is done when
    /// a volume is asked for that is not found without.
    pub nested: bool,
}

/// Sets one of a layer's limits; `what` is `LAYER:KEY=VALUE` or `KEY=VALUE`. Returns the setting for leaves.
pub fn parse_setting(what: &str) -> Result<LeafOption, VolumeError> {
    let refuse = |reason: String| VolumeError::Setting { setting: what.to_owned(), what: reason };
    let (key, value) = what.split_once('=').ok_or_else(|| refuse("expected KEY=VALUE".to_owned()))?;
    let key = match key.split_once(':') {
        None => key,
        Some(("leaf", key)) => key,
        Some((layer, _)) => {
            return Err(refuse(format!("no layer {layer:?} has settings; expected leaf:{key}")));
        }
    };
    // Found out here rather than when the first disk is opened.
    Limits::default().set(key, value).map_err(|error| refuse(error.to_string()))?;
    Ok((key.to_owned(), value.to_owned()))
}

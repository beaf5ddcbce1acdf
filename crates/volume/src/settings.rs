//! `--set LAYER:KEY=VALUE`: gives devices their settings as they are assembled, and knows which setting found none.

use std::sync::Arc;

use blockwork_engine::{Layer, Nanos, NodeKind, Sectors};
use blockwork_layer::DiscardMax;
use blockwork_layer::md::{self, SYNC_SPEED_DEFAULT};

use crate::assembly::Assembly;
use crate::error::VolumeError;
use crate::plan::{LayerKey, LayerSetting, THIN_POOL};

/// By how much pools are extended where nobody says, percent: as in lvm.conf.
const AUTOEXTEND_PERCENT: u64 = 20;
/// LVM extends no pool that is emptier, percent.
const AUTOEXTEND_LEAST: u64 = 50;

/// When a thin pool is extended by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Autoextend {
    /// When more of it is in use, percent.
    pub threshold: u64,
    /// By how much of what it has, percent.
    pub percent: u64,
}

impl Assembly {
    /// The layer of a device with its settings. `raid10_chunk` is the chunk of a RAID10, and zero for anything else: Linux's
    /// RAID10 cut discards there, as long as it had a limit on them.
    ///
    /// # Errors
    ///
    /// A setting that the device cannot have.
    pub(crate) fn with_settings(
        &mut self,
        name: &str,
        mut layer: Arc<dyn Layer>,
        raid10_chunk: Sectors,
    ) -> Result<Arc<dyn Layer>, VolumeError> {
        let kind = self.node(layer.node()).kind;
        for setting in self.settings_for(name, kind)? {
            if setting.key == LayerKey::DiscardMaxBytes {
                let capped = DiscardMax::new(layer, &setting.value.to_string());
                let capped = capped.map_err(|error| setting.refuse(error.to_string()))?;
                layer = Arc::new(capped.cut_at_chunks(raid10_chunk));
            }
        }
        Ok(layer)
    }

    /// Sets how fast an array is synced, if that was asked for; `table` is what its table says.
    pub(crate) fn set_sync_speed(
        &mut self,
        name: &str,
        kind: NodeKind,
        array: &md::Array,
        table: (Option<u64>, Option<u64>),
    ) -> Result<(), VolumeError> {
        let (mut min, mut max) = table;
        let mut last = None;
        for setting in self.settings_for(name, kind)? {
            match setting.key {
                LayerKey::SyncSpeedMin => (min, last) = (Some(setting.value), Some(setting)),
                LayerKey::SyncSpeedMax => (max, last) = (Some(setting.value), Some(setting)),
                LayerKey::DiscardMaxBytes
                | LayerKey::NoSpaceTimeout
                | LayerKey::AutoextendThreshold
                | LayerKey::AutoextendPercent
                | LayerKey::StartDirtyDegraded => {}
            }
        }
        let is_asked = min.or(max).is_some();
        let other = match (min, max) {
            (None, Some(_)) => " (sync_speed_min, where it is not set)",
            (Some(_), None) => " (sync_speed_max, where it is not set)",
            _ => "",
        };
        let (min, max) = (min.unwrap_or(SYNC_SPEED_DEFAULT.0), max.unwrap_or(SYNC_SPEED_DEFAULT.1));
        if let Some(setting) = last.filter(|_| min > max) {
            return Err(setting.refuse(format!(
                "{min} to {max} KiB/s is not possible: the minimum is above the maximum{other}"
            )));
        }
        if is_asked {
            array.set_speed(min, max);
        }
        Ok(())
    }

    /// Whether the parity of an array counts where it may not fit the data.
    ///
    /// # Errors
    ///
    /// A setting that the array cannot have.
    pub(crate) fn starts_dirty_degraded(&mut self, name: &str, kind: NodeKind) -> Result<bool, VolumeError> {
        let settings = self.settings_for(name, kind)?;
        let last = settings.iter().rfind(|setting| setting.key == LayerKey::StartDirtyDegraded);
        Ok(last.is_some_and(|setting| setting.value == 1))
    }

    /// How long writes to a full pool wait for space, if that was asked for: none is for ever.
    ///
    /// # Errors
    ///
    /// A setting that the pool cannot have.
    pub(crate) fn no_space_timeout(&mut self, pool: &str) -> Result<Option<Option<Nanos>>, VolumeError> {
        let settings = self.settings_for(pool, THIN_POOL)?;
        let last = settings.iter().rfind(|setting| setting.key == LayerKey::NoSpaceTimeout);
        Ok(last.map(|setting| Some(setting.value).filter(|value| *value > 0).map(Nanos::secs)))
    }

    /// When a pool of a group is extended, and by how much; none: never. The threshold is at least 50, as for LVM.
    pub(crate) fn autoextend(&mut self, pool: &str) -> Result<Option<Autoextend>, VolumeError> {
        let settings = self.settings_for(pool, THIN_POOL)?;
        let last = |key| settings.iter().rfind(|setting| setting.key == key).map(|setting| setting.value);
        let threshold = last(LayerKey::AutoextendThreshold).filter(|threshold| *threshold < 100);
        let percent = last(LayerKey::AutoextendPercent).unwrap_or(AUTOEXTEND_PERCENT);
        Ok(threshold.map(|threshold| Autoextend { threshold: threshold.max(AUTOEXTEND_LEAST), percent }))
    }

    /// The settings that are for this device.
    fn settings_for(&mut self, name: &str, kind: NodeKind) -> Result<Vec<LayerSetting>, VolumeError> {
        let mut found = Vec::new();
        for setting in self.plan.layer_settings().filter(|setting| setting.is_for(name, kind)) {
            if !setting.fits(kind) {
                let of_disks = match setting.key {
                    LayerKey::DiscardMaxBytes => format!(
                        "; what it lies on has: --set {0}={1} for all disks, --disk DISK,{0}={1} for one",
                        setting.key.name(),
                        setting.value
                    ),
                    _ => String::new(),
                };
                let what =
                    format!("{name}, a device of the kind {}, has no such setting{of_disks}", kind.name());
                // Who opens all that there is goes on without such a device.
                self.setting_unfit = Some((setting.clone(), what.clone()));
                return Err(setting.refuse(what));
            }
            found.push(setting.clone());
        }
        for setting in &found {
            if !self.settings_used.contains(setting) {
                self.settings_used.push(setting.clone());
            }
        }
        Ok(found)
    }

    /// Whether each setting of a layer was for some device, or is for a kind of which some may come yet, and for none that cannot have it: once
    /// those that are served have been chosen.
    ///
    /// # Errors
    ///
    /// One was for none.
    pub fn check_settings(&self) -> Result<(), VolumeError> {
        if let Some((setting, what)) = &self.setting_unfit {
            return Err(setting.refuse(what.clone()));
        }
        // Volumes are made while their group is served.
        let may_come = !self.plan.read_only && !self.graph.groups.is_empty();
        let is_for_some = |setting: &LayerSetting| {
            self.settings_used.contains(setting) || may_come && setting.is_for_kind_of_volumes()
        };
        match self.plan.layer_settings().find(|setting| !is_for_some(setting)) {
            Some(unused) => {
                let what = "no device of that kind or name is assembled; `blockwork scan` shows those that there are";
                Err(unused.refuse(what.to_owned()))
            }
            None => Ok(()),
        }
    }
}

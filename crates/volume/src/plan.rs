//! What is asked for: disks, tables, settings.

use blockwork_engine::{Limits, NodeKind};
use blockwork_leaf::OpenOptions;

use crate::error::VolumeError;

/// A queue setting for leaves.
pub type LeafOption = (String, String);

/// `--set`: of all leaves, or of layers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Setting {
    /// `KEY=VALUE` or `leaf:KEY=VALUE`.
    Leaf(LeafOption),
    /// `LAYER:KEY=VALUE`.
    Layer(LayerSetting),
}

/// A setting of every device of a kind, or of one volume. As in Linux, it is devices that have settings: of a logical volume, it
/// is the whole of it, not each of its segments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerSetting {
    /// A kind of device as statistics show it (`md`, `raid`, `linear`, `striped`, `dm`, `part`), or a volume's name.
    pub layer: String,
    /// What is set.
    pub key: LayerKey,
    /// To what: a number.
    pub value: u64,
}

/// What can be set of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerKey {
    /// `discard_max_bytes`: discards are cut to it before the layer sees them.
    DiscardMaxBytes,
    /// `sync_speed_min`, KiB a second and member: of arrays.
    SyncSpeedMin,
    /// `sync_speed_max`, likewise.
    SyncSpeedMax,
    /// `no_space_timeout`, seconds that writes to a full thin pool wait for space; 0: for ever.
    NoSpaceTimeout,
    /// `thin_pool_autoextend_threshold`, percent of a pool of a group beyond which it is extended; 100: never, as in lvm.conf.
    AutoextendThreshold,
    /// `thin_pool_autoextend_percent`, by how much of what it has.
    AutoextendPercent,
    /// `start_dirty_degraded`, of arrays with parity: 1: the parity fits the data also where nobody can know, as the kernel's md has it.
    StartDirtyDegraded,
}

/// Of a thin pool, which no layer is.
pub(crate) const THIN_POOL: NodeKind = NodeKind::Other("thin-pool");

/// Kinds of devices that have settings, by the names that statistics show.
const LAYERS: [NodeKind; 7] = [
    NodeKind::Md,
    NodeKind::Raid,
    NodeKind::Linear,
    NodeKind::Striped,
    NodeKind::Table,
    NodeKind::Partition,
    THIN_POOL,
];

/// What is to be opened, and how.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// DISK arguments: paths with options, `null:SIZE`, `memory:SIZE`.
    pub disks: Vec<String>,
    /// Table files.
    pub tables: Vec<String>,
    /// Nothing will be written, not even that an array is in use.
    pub read_only: bool,
    /// Settings of leaves and layers: from [`parse_setting`].
    pub settings: Vec<Setting>,
    /// Only look: open the disks for reading, and take no locks, as they may be in use. What the volumes are like does not depend on that, but on `read_only`;
    /// what would be written to them fails.
    pub unlocked: bool,
    /// Look into logical volumes at once: they may be the disks of other machines. Otherwise this is done when
    /// a volume is asked for that is not found without.
    pub nested: bool,
}

impl Plan {
    /// How disks are opened.
    pub(crate) fn open_options(&self) -> OpenOptions {
        OpenOptions {
            read_only: self.read_only || self.unlocked,
            settings: self.leaf_settings(),
            unlocked: self.unlocked,
        }
    }

    /// Queue settings for all leaves, by sysfs name.
    fn leaf_settings(&self) -> Vec<LeafOption> {
        let of_leaves = |setting: &Setting| match setting {
            Setting::Leaf(option) => Some(option.clone()),
            Setting::Layer(_) => None,
        };
        self.settings.iter().filter_map(of_leaves).collect()
    }

    /// Settings of layers, in the order in which they were given.
    pub(crate) fn layer_settings(&self) -> impl Iterator<Item = &LayerSetting> {
        self.settings.iter().filter_map(|setting| match setting {
            Setting::Layer(setting) => Some(setting),
            Setting::Leaf(_) => None,
        })
    }
}

impl LayerKey {
    /// All of them.
    const ALL: [LayerKey; 7] = [
        LayerKey::DiscardMaxBytes,
        LayerKey::SyncSpeedMin,
        LayerKey::SyncSpeedMax,
        LayerKey::NoSpaceTimeout,
        LayerKey::AutoextendThreshold,
        LayerKey::AutoextendPercent,
        LayerKey::StartDirtyDegraded,
    ];

    /// Its name, which is Linux's.
    pub fn name(self) -> &'static str {
        match self {
            LayerKey::DiscardMaxBytes => "discard_max_bytes",
            LayerKey::SyncSpeedMin => "sync_speed_min",
            LayerKey::SyncSpeedMax => "sync_speed_max",
            LayerKey::NoSpaceTimeout => "no_space_timeout",
            LayerKey::AutoextendThreshold => "thin_pool_autoextend_threshold",
            LayerKey::AutoextendPercent => "thin_pool_autoextend_percent",
            LayerKey::StartDirtyDegraded => "start_dirty_degraded",
        }
    }

    /// Whether a device of that kind has it.
    fn is_of(self, kind: NodeKind) -> bool {
        match self {
            LayerKey::DiscardMaxBytes => kind != THIN_POOL,
            LayerKey::SyncSpeedMin | LayerKey::SyncSpeedMax | LayerKey::StartDirtyDegraded => {
                matches!(kind, NodeKind::Md | NodeKind::Raid)
            }
            LayerKey::NoSpaceTimeout | LayerKey::AutoextendThreshold | LayerKey::AutoextendPercent => {
                kind == THIN_POOL
            }
        }
    }
}

impl LayerSetting {
    /// Whether it is for a device with that name and kind.
    pub(crate) fn is_for(&self, name: &str, kind: NodeKind) -> bool {
        (self.layer == kind.name() && LAYERS.contains(&kind)) || self.layer == name
    }

    /// Whether it is for a kind of which volumes of groups are.
    pub(crate) fn is_for_kind_of_volumes(&self) -> bool {
        let kinds = [NodeKind::Raid, NodeKind::Linear, NodeKind::Striped, NodeKind::Table, THIN_POOL];
        kinds.iter().any(|kind| self.layer == kind.name())
    }

    /// Whether such a device has what it sets.
    pub(crate) fn fits(&self, kind: NodeKind) -> bool {
        LAYERS.contains(&kind) && self.key.is_of(kind)
    }

    /// That it cannot be.
    pub(crate) fn refuse(&self, what: String) -> VolumeError {
        VolumeError::Setting { setting: self.to_string(), what }
    }
}

impl std::fmt::Display for LayerSetting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}={}", blockwork_format::escape(&self.layer), self.key.name(), self.value)
    }
}

/// One `--set`: `KEY=VALUE` of all leaves, or `LAYER:KEY=VALUE`.
///
/// # Errors
///
/// No such key of a leaf or layer, or a value that it cannot have.
pub fn parse_setting(what: &str) -> Result<Setting, VolumeError> {
    let refuse = |reason: String| VolumeError::Setting { setting: what.to_owned(), what: reason };
    let (key, value) = what.split_once('=').ok_or_else(|| refuse("expected KEY=VALUE".to_owned()))?;
    let key = match key.rsplit_once(':') {
        None => key,
        Some(("leaf", key)) => key,
        Some((layer, key)) => return parse_layer_setting(layer, key, value).map_err(refuse),
    };
    // Found out here rather than when the first disk is opened.
    Limits::default().set(key, value).map_err(|error| refuse(error.to_string()))?;
    Ok(Setting::Leaf((key.to_owned(), value.to_owned())))
}

fn parse_layer_setting(layer: &str, key: &str, value: &str) -> Result<Setting, String> {
    let kind = LAYERS.into_iter().find(|kind| kind.name() == layer);
    let is_disk = layer.strip_prefix("disk/").is_some_and(|name| !name.contains('/'));
    let is_of_layers = LayerKey::ALL.iter().any(|known| known.name() == key) && !is_disk;
    if kind.is_none() && layer.contains('/') && Limits::SETTINGS.contains(&key) && !is_of_layers {
        return Err(format!(
            "{key} is a setting of disks{}: of one, as an option of it (--disk DISK,{key}={value}); of all, --set {key}={value}",
            if is_disk { "" } else { ", and of nothing above them" }
        ));
    }
    // A volume's name has a slash; which volumes there are is not known yet.
    if kind.is_none() && !layer.contains('/') {
        let kinds = LAYERS.map(NodeKind::name).join(", ");
        return Err(format!("no layer is called {layer:?}; expected leaf, {kinds}, or a volume's name"));
    }
    let fits = |key: &LayerKey| kind.is_none_or(|kind| key.is_of(kind));
    let Some(found) = LayerKey::ALL.into_iter().find(|known| fits(known) && known.name() == key) else {
        let keys: Vec<_> = LayerKey::ALL.into_iter().filter(fits).map(LayerKey::name).collect();
        return Err(format!("{layer} has no setting {key:?}; there are: {}", keys.join(", ")));
    };
    let value = value.parse().map_err(|_| format!("{key}={value}: expected a whole number"))?;
    if value == 0 && matches!(found, LayerKey::SyncSpeedMin | LayerKey::SyncSpeedMax) {
        return Err(format!("{key}={value}: expected at least 1 (KiB a second)"));
    }
    if !(50..=100).contains(&value) && found == LayerKey::AutoextendThreshold {
        return Err(format!("{key}={value}: expected percent, 50 to 100 (never)"));
    }
    if value > 1 && found == LayerKey::StartDirtyDegraded {
        return Err(format!("{key}={value}: expected 0 or 1"));
    }
    if value == 0 && found == LayerKey::AutoextendPercent {
        return Err(format!("{key}={value}: expected at least 1 (percent)"));
    }
    Ok(Setting::Layer(LayerSetting { layer: layer.to_owned(), key: found, value }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(what: &str) -> String {
        parse_setting(what).expect_err(what).to_string()
    }

    #[test]
    fn what_disks_have_is_refused_of_others_with_where_it_belongs() {
        for (what, place) in [
            ("disk/d.img:nr_requests=64", "--disk DISK,nr_requests=64)"),
            ("disk/d.img:discard_max_bytes=0", "--set discard_max_bytes=0"),
            ("vg0/root:nr_requests=64", "and of nothing above them"),
            ("disk/d.img:foo=1", "has no setting \"foo\""),
            ("disk/d.img:sync_speed_min=1", ""),
            ("vg0/root:discard_max_bytes=0", ""),
            ("disk/d.img/1:discard_max_bytes=0", ""),
        ] {
            let refused = parse_setting(what).map_err(|error| error.to_string()).err();
            match place {
                "" => assert_eq!(refused, None, "{what}"),
                place => assert!(refused.as_ref().is_some_and(|said| said.contains(place)), "{refused:?}"),
            }
        }
    }

    #[test]
    fn settings_are_of_leaves_or_of_layers() {
        assert_eq!(parse_setting("nomerges=2").unwrap(), Setting::Leaf(("nomerges".into(), "2".into())));
        assert_eq!(parse_setting("leaf:nomerges=2").unwrap(), parse_setting("nomerges=2").unwrap());
        let of = |layer: &str, key, value| Setting::Layer(LayerSetting { layer: layer.into(), key, value });
        let discard = LayerKey::DiscardMaxBytes;
        assert_eq!(parse_setting("md:discard_max_bytes=524288").unwrap(), of("md", discard, 524_288));
        assert_eq!(parse_setting("vg0/a:b:discard_max_bytes=0").unwrap(), of("vg0/a:b", discard, 0));
        assert_eq!(parse_setting("md/a:sync_speed_min=7").unwrap(), of("md/a", LayerKey::SyncSpeedMin, 7));
    }

    #[test]
    fn what_a_layer_has_not_is_refused_with_what_it_has() {
        let cases = [
            ("nomerges", "expected KEY=VALUE"),
            ("no_merges=2", "no queue setting is called \"no_merges\"; there are: nomerges"),
            (
                "raid5:nomerges=2",
                "no layer is called \"raid5\"; expected leaf, md, raid, linear, striped, dm, part, thin-pool, or a",
            ),
            (
                "md:nomerges=2",
                "md has no setting \"nomerges\"; there are: discard_max_bytes, sync_speed_min, sync_speed_max",
            ),
            (
                "linear:sync_speed_min=5",
                "linear has no setting \"sync_speed_min\"; there are: discard_max_bytes",
            ),
            ("md:discard_max_bytes=512K", "expected a whole number"),
            ("md:sync_speed_max=0", "expected at least 1"),
            ("thin-pool:thin_pool_autoextend_threshold=101", "expected percent, 50 to 100"),
            ("thin-pool:thin_pool_autoextend_percent=0", "expected at least 1 (percent)"),
        ];
        for (what, expected) in cases {
            let message = error(what);
            assert!(
                message.starts_with(&format!("--set {what}: ")) && message.contains(expected),
                "{message}"
            );
        }
    }
}

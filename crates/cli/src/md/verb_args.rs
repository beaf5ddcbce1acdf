//! Options of the verbs that look after an array: of a running server, or of one whose disks are named.

use clap::{Args, ValueHint};

/// Which array, and where it is.
#[derive(Debug, Args)]
pub(crate) struct Which {
    /// The array: md/NAME, or md/UUID.
    #[arg(value_name = "ARRAY")]
    pub(crate) array: String,
    #[command(flatten)]
    pub(crate) place: Place,
}

/// Where arrays are.
#[derive(Debug, Args)]
pub(crate) struct Place {
    /// Open the array's disks in this process. Without it, the running server that has the array is asked.
    #[arg(long, value_name = "DISK", num_args = 1.., value_hint = ValueHint::FilePath)]
    pub(crate) disk: Vec<String>,
    /// The verb has the option above.
    #[arg(skip = true)]
    pub(crate) may_open: bool,
    /// Of an array opened by --disk: sync at most so fast, KiB/s. Default: as fast as the disks are.
    #[arg(long, value_name = "KIB", requires = "disk", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) sync_speed_max: Option<u64>,
    /// Print JSON: {"said": ..., "devices": [...], "array": {...}}, the array as docs/control-api.md has it.
    #[arg(long)]
    pub(crate) json: bool,
}

/// An array of a running server.
#[derive(Debug, Args)]
pub(crate) struct ServedArgs {
    /// The array: md/NAME, or md/UUID.
    #[arg(value_name = "ARRAY")]
    array: String,
    /// Print JSON: {"said": ..., "devices": [...], "array": {...}}, the array as docs/control-api.md has it.
    #[arg(long)]
    json: bool,
}

impl From<&ServedArgs> for Which {
    fn from(args: &ServedArgs) -> Which {
        let place = Place { disk: Vec::new(), may_open: false, sync_speed_max: None, json: args.json };
        Which { array: args.array.clone(), place }
    }
}

#[derive(Debug, Args)]
pub(crate) struct AddArgs {
    #[command(flatten)]
    pub(crate) which: Which,
    /// Disks as `serve --disk` takes them, or PATH/NUMBER for a partition.
    #[arg(value_name = "DEVICE", required = true, value_hint = ValueHint::FilePath)]
    pub(crate) devices: Vec<String>,
    /// Take a device that holds something else, which is lost.
    #[arg(long)]
    pub(crate) force: bool,
    /// Wait until the array is in sync, and show how far it is.
    #[arg(long)]
    pub(crate) wait: bool,
}

#[derive(Debug, Args)]
pub(crate) struct DevicesArgs {
    #[command(flatten)]
    pub(crate) which: Which,
    /// Devices of the array: by name, by the end of their path (sdb, a.img/2), or by role.
    #[arg(value_name = "DEVICE", required = true)]
    pub(crate) devices: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct RemoveArgs {
    #[command(flatten)]
    pub(crate) which: Which,
    /// Devices of the array, by name, path or role; `failed` or `detached` for all that are so.
    #[arg(value_name = "DEVICE", required = true)]
    pub(crate) devices: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct ReplaceArgs {
    #[command(flatten)]
    pub(crate) which: Which,
    /// The member: by name, by the end of its path (sdb, a.img/2), or by role.
    #[arg(value_name = "DEVICE")]
    pub(crate) device: String,
    /// The spare that takes its place; any, where none is named.
    #[arg(long, value_name = "SPARE")]
    pub(crate) with: Option<String>,
    /// Wait until that is done, and show how far it is.
    #[arg(long)]
    pub(crate) wait: bool,
}

#[derive(Debug, Args)]
pub(crate) struct SyncArgs {
    #[command(flatten)]
    pub(crate) which: Which,
    /// Wait until that is done, and show how far it is.
    #[arg(long)]
    pub(crate) wait: bool,
}

#[derive(Debug, Args)]
pub(crate) struct GrowArgs {
    #[command(flatten)]
    pub(crate) which: Which,
    /// Use of each member. Default, and `max`: all that they have room for.
    #[arg(short = 'z', long, value_name = "SIZE[k]|max")]
    pub(crate) size: Option<String>,
    /// Do not sync what is new: it is known to be the same on all mirrors.
    #[arg(long)]
    pub(crate) assume_clean: bool,
    /// Wait until what is new is in sync, and show how far it is.
    #[arg(long)]
    pub(crate) wait: bool,
}

#[derive(Debug, Args)]
pub(crate) struct SpeedArgs {
    #[command(flatten)]
    pub(crate) served: ServedArgs,
    /// KiB/s of each member that syncing may take even while clients are served. Without this it stays as it is; without either, both
    /// are shown.
    #[arg(long, value_name = "KIB")]
    pub(crate) min: Option<u64>,
    /// KiB/s of each member that it takes at most.
    #[arg(long, value_name = "KIB")]
    pub(crate) max: Option<u64>,
}

#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    /// An array: md/NAME, or md/UUID. All, where none is named.
    #[arg(value_name = "ARRAY")]
    pub(crate) array: Option<String>,
    /// Look at the arrays on these disks, which are only read. Without it, running servers are asked.
    #[arg(long, value_name = "DISK", num_args = 1.., value_hint = ValueHint::FilePath)]
    pub(crate) disk: Vec<String>,
    /// Print JSON: {"arrays": [...]}, as docs/control-api.md has it.
    #[arg(long)]
    pub(crate) json: bool,
}

//! The verbs of `blockwork vg` and their options.

use clap::{Args, Subcommand, ValueHint};

#[derive(Debug, Args)]
pub(crate) struct VgArgs {
    #[command(subcommand)]
    pub(crate) verb: VgVerb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum VgVerb {
    /// Make a volume group of disks, partitions or arrays. Refuses what holds something, and disks in use.
    #[command(after_help = "Examples:\n  blockwork vg create vg0 a.img b.img\n  \
        blockwork vg create vg0 /dev/vdb /dev/vdc1 --physical-extent-size 16M --addtag db\n  \
        blockwork vg create vg0 md/data --disk a.img b.img\n\n\
        Disks become LVM2 physical volumes as `pvcreate` makes them: one metadata area, extents from 1 MiB on.")]
    Create(CreateArgs),
    /// Add disks to a group.
    #[command(after_help = "Example:\n  blockwork vg extend vg0 c.img --disk a.img b.img")]
    Extend(ExtendArgs),
    /// Take disks on which no volume lies out of a group.
    #[command(after_help = "Example:\n  blockwork vg reduce vg0 c.img --disk a.img b.img")]
    Reduce(ReduceArgs),
    /// Give a group another name.
    #[command(after_help = "Example:\n  blockwork vg rename vg0 vg1 --disk a.img b.img")]
    Rename(RenameArgs),
    /// Add tags to a group, and take some away.
    #[command(
        after_help = "Examples:\n  blockwork vg tag vg0 --addtag db --deltag old\n  blockwork vg tag vg0 --addtag db --disk a.img b.img"
    )]
    Tag(TagArgs),
    /// Show groups, as `vgs` does. Writes nothing.
    #[command(after_help = "Examples:\n  blockwork vg show\n  blockwork vg show --disk a.img b.img")]
    Show(ShowArgs),
}

/// Where groups are.
#[derive(Debug, Args)]
pub(crate) struct Disks {
    /// The disks of the group, all of them: PATH[,option=value...].
    #[arg(long, value_name = "DISK", num_args = 1.., required = true, value_hint = ValueHint::FilePath)]
    pub(crate) disk: Vec<String>,
    /// Print JSON, sizes in bytes.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Where a group is that may be served.
#[derive(Debug, Args)]
pub(crate) struct Place {
    /// The disks of the group, all of them: PATH[,option=value...]. Without them, the running server that serves volumes of the group
    /// is asked.
    #[arg(long, value_name = "DISK", num_args = 1.., value_hint = ValueHint::FilePath)]
    pub(crate) disk: Vec<String>,
    /// Of a server that was told which volumes to serve: serve what is new as well.
    #[arg(long)]
    pub(crate) serve: bool,
    /// As for LVM's tools; nothing is asked here without it, either.
    #[arg(short = 'y', long = "yes")]
    _yes: bool,
    /// Print JSON, sizes in bytes.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct CreateArgs {
    /// Name of the new group.
    #[arg(value_name = "VG")]
    pub(crate) group: String,
    /// Its disks; PATH/NUMBER for a partition, or a device on the disks of --disk by the name that `scan` shows.
    #[arg(value_name = "DISK", required = true, value_hint = ValueHint::FilePath)]
    pub(crate) devices: Vec<String>,
    /// More disks to open: those that a device above lies on.
    #[arg(long, value_name = "DISK", num_args = 1.., value_hint = ValueHint::FilePath)]
    pub(crate) disk: Vec<String>,
    /// Size of an extent, a power of two or a multiple of 128K.
    #[arg(short = 's', long, value_name = "SIZE[m]", default_value = "4M")]
    pub(crate) physical_extent_size: String,
    /// Tags for the group.
    #[arg(long, value_name = "TAG")]
    pub(crate) addtag: Vec<String>,
    /// What the disks hold may be destroyed: file systems, partitions, superblocks of arrays that nobody serves.
    #[arg(long)]
    pub(crate) force: bool,
    /// Print JSON, sizes in bytes.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ExtendArgs {
    /// The group.
    #[arg(value_name = "VG")]
    pub(crate) group: String,
    /// Disks to add, as for `vg create`. Those that are in the group already only tell where it is.
    #[arg(value_name = "DISK", required = true, value_hint = ValueHint::FilePath)]
    pub(crate) devices: Vec<String>,
    /// The disks of the group.
    #[arg(long, value_name = "DISK", num_args = 1.., value_hint = ValueHint::FilePath)]
    pub(crate) disk: Vec<String>,
    /// What the disks hold may be destroyed: file systems, partitions, superblocks of arrays that nobody serves.
    #[arg(long)]
    pub(crate) force: bool,
    /// Print JSON, sizes in bytes.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ReduceArgs {
    /// The group.
    #[arg(value_name = "VG")]
    pub(crate) group: String,
    /// Disks that leave it, or UUIDs of their physical volumes.
    #[arg(value_name = "DISK", required = true, value_hint = ValueHint::FilePath)]
    pub(crate) devices: Vec<String>,
    /// The other disks of the group.
    #[arg(long, value_name = "DISK", num_args = 1.., value_hint = ValueHint::FilePath)]
    pub(crate) disk: Vec<String>,
    /// Print JSON, sizes in bytes.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct RenameArgs {
    /// The group.
    #[arg(value_name = "VG")]
    pub(crate) group: String,
    /// Its new name.
    #[arg(value_name = "NEW")]
    pub(crate) new: String,
    #[command(flatten)]
    pub(crate) disks: Disks,
}

#[derive(Debug, Args)]
pub(crate) struct TagArgs {
    /// The group.
    #[arg(value_name = "VG")]
    pub(crate) group: String,
    #[command(flatten)]
    pub(crate) tags: Tags,
    #[command(flatten)]
    pub(crate) place: Place,
}

/// What is done with tags.
#[derive(Debug, Args)]
#[group(required = true, multiple = true)]
pub(crate) struct Tags {
    /// A tag to add.
    #[arg(long, value_name = "TAG")]
    pub(crate) addtag: Vec<String>,
    /// A tag to take away.
    #[arg(long, value_name = "TAG")]
    pub(crate) deltag: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    /// Only this group.
    #[arg(value_name = "VG")]
    pub(crate) group: Option<String>,
    /// The disks of the group, all of them: PATH[,option=value...]. Without them, running servers are asked.
    #[arg(long, value_name = "DISK", num_args = 1.., value_hint = ValueHint::FilePath)]
    pub(crate) disk: Vec<String>,
    /// Print JSON, sizes in bytes.
    #[arg(long)]
    pub(crate) json: bool,
}

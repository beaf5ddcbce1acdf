//! The verbs of `blockwork md` and their options.

use clap::{Args, Subcommand, ValueEnum, ValueHint};

use super::verb_args::{
    AddArgs, DevicesArgs, GrowArgs, RemoveArgs, ReplaceArgs, ServedArgs, SpeedArgs, StatusArgs, SyncArgs,
    Which,
};

#[derive(Debug, Args)]
pub(crate) struct MdArgs {
    #[command(subcommand)]
    pub(crate) verb: MdVerb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum MdVerb {
    /// Make a new array. Refuses disks that hold something, and disks in use.
    #[command(after_help = "Examples:\n  \
        blockwork md create --level 10 --raid-devices 4 --name data a.img b.img c.img d.img\n  \
        blockwork md create --level 1 --raid-devices 2 --spare-devices 1 --bitmap internal /dev/vdb missing /dev/vdc\n  \
        blockwork md create --level 6 --raid-devices 5 --name data a.img b.img c.img d.img e.img\n\n\
        Where nothing is said, all is as mdadm has it: metadata 1.2, chunks of 512K, layouts left-symmetric and n2, as much of each \
        disk as all have, and a write-intent bitmap if members use more than 100 GiB. Mirrors and parities are resynced by themselves \
        when the array is first served or assembled, unless --assume-clean says that they need not be (of a RAID4 or 5, mdadm has \
        Linux rebuild the last member instead). A RAID6 with one member missing begins with another one as a spare, as mdadm has it.")]
    Create(CreateArgs),
    /// Show what is on members of arrays, as `mdadm --examine` does. Writes nothing; times are UTC.
    #[command(
        after_help = "Examples:\n  blockwork md examine disk.img\n  blockwork md examine --bitmap a.img b.img"
    )]
    Examine(ExamineArgs),
    /// Show arrays of running servers, or on disks, as /proc/mdstat does.
    #[command(
        visible_alias = "detail",
        after_help = "Examples:\n  blockwork md status\n  blockwork md status md/data --disk a.img b.img"
    )]
    Status(StatusArgs),
    /// Take a device in: back to its place where it was a member, else as a spare, which takes the place of a missing member.
    #[command(after_help = "Examples:\n  blockwork md add md/data /srv/c.img\n  \
        blockwork md add md/data c.img --disk a.img b.img\n\n\
        On an array opened by --disk, the device is filled before the command ends; ^C stops, on record.")]
    Add(AddArgs),
    /// Give members up: they get no I/O any more.
    #[command(
        after_help = "Examples:\n  blockwork md fail md/data b.img\n  blockwork md fail md/data b.img --disk a.img b.img"
    )]
    Fail(DevicesArgs),
    /// Take out what has failed, and spares: a server closes their disks, so that others can have them.
    #[command(
        after_help = "Examples:\n  blockwork md remove md/data b.img\n  blockwork md remove md/data failed"
    )]
    Remove(RemoveArgs),
    /// Have a spare take a member's place, which is read until the spare is filled.
    #[command(after_help = "Example:\n  blockwork md replace md/data b.img --with e.img")]
    Replace(ReplaceArgs),
    /// Compare all copies, and count sectors that differ.
    #[command(
        after_help = "Examples:\n  blockwork md check md/data --wait\n  blockwork md check md/data --disk a.img b.img"
    )]
    Check(SyncArgs),
    /// Compare all copies, and make them equal.
    #[command(
        after_help = "Examples:\n  blockwork md repair md/data --wait\n  blockwork md repair md/data --disk a.img b.img"
    )]
    Repair(SyncArgs),
    /// Stop what a running server is syncing, checking or repairing.
    #[command(after_help = "Example:\n  blockwork md stop-sync md/data\n\n\
        There is no --disk: what a command syncs that has opened the disks itself ends with that command, by ^C.")]
    StopSync(ServedArgs),
    /// Have a running server go on with a recovery or resync that was stopped, or that stopped as a disk failed.
    #[command(after_help = "Example:\n  blockwork md start-sync md/data\n\n\
        There is no --disk: `blockwork md wait --disk` does what is due on disks that nobody serves.")]
    StartSync(ServedArgs),
    /// Limit the speed at which a running server syncs.
    #[command(after_help = "Example:\n  blockwork md sync-speed md/data --max 50000\n\n\
        There is no --disk: a command that opens the disks itself, such as `blockwork md add`, takes --sync-speed-max.")]
    SyncSpeed(SpeedArgs),
    /// Make use of what members have more than they had.
    #[command(
        after_help = "Examples:\n  blockwork md grow md/data --wait\n  blockwork md grow md/data --size 200G --disk a.img b.img"
    )]
    Grow(GrowArgs),
    /// Wait until nothing is being synced and nothing is due; with --disk, do what is due.
    #[command(
        after_help = "Examples:\n  blockwork md wait md/data\n  blockwork md wait md/data --disk a.img b.img\n\n\
            A resync, recovery, check or repair that somebody has stopped, or that a disk did not let go on, is no success."
    )]
    Wait(Which),
    /// Take the superblocks away from disks that no array needs any more, so that they are members of none.
    #[command(
        after_help = "Examples:\n  blockwork md zero-superblock b.img\n  blockwork md zero-superblock /dev/vdb1 disk.img/2\n\n\
        Superblocks of all versions go (0.90, 1.0, 1.1, 1.2), and nothing else: data and bitmaps stay. Disks in use are refused; \
        take a member out of its array first (`blockwork md fail`, `md remove`). A disk without one is told of, and no failure."
    )]
    ZeroSuperblock(ZeroArgs),
}

#[derive(Debug, Args)]
pub(crate) struct ZeroArgs {
    /// Disks, or PATH/NUMBER for a partition of one.
    #[arg(value_name = "DISK", required = true, value_hint = ValueHint::FilePath)]
    pub(crate) disks: Vec<String>,
    /// Also what is damaged, what a running server's array may want back, and what lies on a disk with partitions.
    #[arg(short, long)]
    pub(crate) force: bool,
}

#[derive(Debug, Args)]
pub(crate) struct CreateArgs {
    /// Disks, or PATH/NUMBER for a partition of one: first the members by their places, then the spares. `missing` stands for
    /// a member that is to come.
    #[arg(value_name = "DISK", required = true, value_hint = ValueHint::FilePath)]
    pub(crate) disks: Vec<String>,
    /// 0 (stripes), 1 (mirrors), 4, 5 (stripes and a parity, on the last member or spread), 6 (two parities) or 10 (stripes of mirrors).
    #[arg(short, long, value_name = "LEVEL", value_enum)]
    pub(crate) level: NewLevel,
    /// Of a RAID10: n, f or o (near, far, offset) and the number of copies; default n2. Of a RAID5 or 6: left-symmetric (ls, the
    /// default), left-asymmetric (la), right-symmetric (rs), right-asymmetric (ra), parity-first, parity-last; of a RAID6 also
    /// ddf-zero-restart, ddf-N-restart, ddf-N-continue, and with -6 all but parity-last.
    #[arg(short = 'p', long, alias = "parity", value_name = "LAYOUT")]
    pub(crate) layout: Option<String>,
    /// Members, those that are missing included.
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1920))]
    pub(crate) raid_devices: u16,
    /// Spares.
    #[arg(short = 'x', long, value_name = "N", default_value_t = 0)]
    pub(crate) spare_devices: u16,
    /// Chunk: a power of two (of a RAID0 a multiple) of at least 4K. Default: 512K.
    #[arg(short, long, value_name = "SIZE[k]")]
    pub(crate) chunk: Option<String>,
    /// Write-intent bitmap: after a crash, only what may differ is resynced. Default: internal if members use more than
    /// 100 GiB, otherwise none.
    #[arg(short, long, value_enum)]
    pub(crate) bitmap: Option<Bitmap>,
    /// Version of the superblocks: at the end (1.0), at the start (1.1), 4 KiB behind it (1.2).
    #[arg(short = 'e', long, value_enum, default_value = "1.2")]
    pub(crate) metadata: Metadata,
    /// The mirrors hold the same already, or the parity fits the data, or it does not matter: no resync.
    #[arg(long)]
    pub(crate) assume_clean: bool,
    /// NAME or HOST:NAME. Default: the first digits of the UUID.
    #[arg(short = 'N', long)]
    pub(crate) name: Option<String>,
    /// How much of each member to use. Default: as much as all have.
    #[arg(short = 'z', long, value_name = "SIZE[k]")]
    pub(crate) size: Option<String>,
    /// Where data begins on each member. Default: as mdadm has it, with room to reshape.
    #[arg(long, value_name = "SIZE[k]")]
    pub(crate) data_offset: Option<String>,
    /// As for mdadm; nothing is asked here without it, either. Disks that hold something need --force.
    #[arg(short = 'R', long = "run")]
    _run: bool,
    /// Overwrite what the disks hold; make an array of one device.
    #[arg(short, long)]
    pub(crate) force: bool,
    /// Print JSON: the array and its members, sizes in bytes.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Levels that can be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum NewLevel {
    #[value(name = "0", aliases = ["raid0", "stripe"])]
    Raid0,
    #[value(name = "1", aliases = ["raid1", "mirror"])]
    Raid1,
    #[value(name = "4", alias = "raid4")]
    Raid4,
    #[value(name = "5", alias = "raid5")]
    Raid5,
    #[value(name = "6", alias = "raid6")]
    Raid6,
    #[value(name = "10", alias = "raid10")]
    Raid10,
}

/// Whether there is a write-intent bitmap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Bitmap {
    Internal,
    None,
}

/// Versions of superblocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Metadata {
    #[value(name = "1.0")]
    V1_0,
    #[value(name = "1.1")]
    V1_1,
    #[value(name = "1.2", alias = "1")]
    V1_2,
}

#[derive(Debug, Args)]
pub(crate) struct ExamineArgs {
    /// Disks to look at; partitions of them that are members are shown as well.
    #[arg(value_name = "DISK", required = true, value_hint = ValueHint::FilePath)]
    pub(crate) disks: Vec<String>,
    /// Show the write-intent bitmap instead, as `mdadm --examine-bitmap` does.
    #[arg(long, conflicts_with = "bad_blocks")]
    pub(crate) bitmap: bool,
    /// Show the list of bad blocks instead, as `mdadm --examine-badblocks` does.
    #[arg(long)]
    pub(crate) bad_blocks: bool,
    /// Print JSON: a list of members with superblock, bitmap and bad blocks; sizes in bytes.
    #[arg(long, conflicts_with_all = ["bitmap", "bad_blocks"])]
    pub(crate) json: bool,
}

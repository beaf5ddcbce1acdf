//! The verbs of `blockwork md` and their options.

use clap::{Args, Subcommand};

use super::verb_args::{
    AddArgs, DevicesArgs, GrowArgs, RemoveArgs, ReplaceArgs, SpeedArgs, StatusArgs, SyncArgs, Which,
};

#[derive(Debug, Args)]
pub(crate) struct MdArgs {
    #[command(subcommand)]
    pub(crate) verb: MdVerb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum MdVerb {
    /// Show what is on members of arrays, as `mdadm --examine` does. Writes nothing; times are UTC.
    #[command(
        after_help = "Examples:\n  blockwork md examine disk.img\n  blockwork md examine --bitmap a.img b.img"
    )]
    Examine(ExamineArgs),
    /// Show arrays of running servers, or on disks, as /proc/mdstat does.
    #[command(after_help = "Examples:\n  blockwork md status\n  blockwork md status md/data --disk a.img b.img")]
    Status(StatusArgs),
    /// Take a device in: back to its place where it was a member, else as a spare, which takes the place of a missing member.
    #[command(after_help = "Examples:\n  blockwork md add md/data /srv/c.img\n  \
        blockwork md add md/data c.img --disk a.img b.img\n\n\
        On an array opened by --disk, the device is filled before the command ends; ^C stops, on record.")]
    Add(AddArgs),
    /// Give members up: they get no I/O any more.
    Fail(DevicesArgs),
    /// Take out what has failed, and spares.
    #[command(after_help = "Examples:\n  blockwork md remove md/data b.img\n  blockwork md remove md/data failed")]
    Remove(RemoveArgs),
    /// Have a spare take a member's place, which is read until the spare is filled.
    #[command(after_help = "Example:\n  blockwork md replace md/data b.img --with e.img")]
    Replace(ReplaceArgs),
    /// Compare all copies, and count sectors that differ.
    Check(SyncArgs),
    /// Compare all copies, and make them equal.
    Repair(SyncArgs),
    /// Stop what is being synced, checked or repaired.
    StopSync(Which),
    /// Limit the speed of syncing.
    SyncSpeed(SpeedArgs),
    /// Make use of what members have more than they had.
    Grow(GrowArgs),
    /// Wait until nothing is being synced and nothing is due; with --disk, do what is due.
    Wait(Which),
}

#[derive(Debug, Args)]
pub(crate) struct ExamineArgs {
    /// Disks to look at; partitions of them that are members are shown as well.
    #[arg(value_name = "DISK", required = true)]
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

//! The verbs of `blockwork md` and their options.

use clap::{Args, Subcommand};

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

//! What people type who know Linux's tools, and what it is here.
//!
//! Where it is the same thing, the verbs have it among their options. What is not there is refused by clap as ever (exit 2); what
//! stands in [`HABITS`] is refused with the command of ours that does it in place of clap's guess at a word that looks alike.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, CommandFactory, Error, FromArgMatches};

use crate::args::Cli;

/// Below which command (`""`: of `blockwork` itself) which words or options are answered by which tips.
type Habit = (&'static str, &'static [&'static str], &'static [&'static str]);

const SERVE: &str =
    "`blockwork serve --disk DISK... VG/LV` finds a volume on its disks and serves it; nothing is activated";
const STOP: &str = "SIGTERM ends a server (`kill $(cat FILE)` after `blockwork serve --pid-file FILE`): it answers, flushes, and takes its \
    mounts and sockets with it";
const LVM_ONLY: &str = "there is no command here for that: LVM does it, on disks that nobody serves";
const SHOW_LV: &str =
    "`blockwork lv show --disk DISK...` shows volumes; without --disk, those of a running server";
const SHOW_VG: &str =
    "`blockwork vg show --disk DISK...` shows groups; without --disk, those of a running server";
const SCAN: &str = "`blockwork scan DISK...` shows what disks hold";
const RESIZE: &str = "`blockwork lv resize VG/LV --size [+|-]SIZE` makes a volume larger or smaller";
const REMOVE_LV: &str = "`blockwork lv remove VG/LV...` removes volumes";
const RENAME_LV: &str = "`blockwork lv rename VG/LV NEW` gives a volume another name";
const SNAPSHOT: &str =
    "`blockwork lv snapshot VG/LV --name NEW --size SIZE` makes a snapshot; of a thin volume without --size";
const MERGE: &str = "`blockwork lv merge VG/SNAPSHOT` merges a snapshot back into its origin";
const CREATE_VG: &str = "`blockwork vg create VG DISK...` makes disks physical volumes, and a group of them";
const TAGS: &str = "`blockwork lv tag VG/LV` and `blockwork vg tag VG` change tags";
const CREATE_MD: &str = "`blockwork md create --level 1 --raid-devices 2 --name NAME DISK...` makes an array";
const EXAMINE: &str = "`blockwork md examine DISK...` shows what is on members";
const STATUS_MD: &str =
    "`blockwork md status` shows arrays of running servers; with --disk DISK..., those on disks";
const ASSEMBLE: &str = "`blockwork serve --disk DISK... md/NAME` assembles an array, and serves it";
const MANAGE: &str =
    "`blockwork md add`, `fail`, `remove` and `replace` take the array, md/NAME, and devices";
const ZERO: &str = "`blockwork md zero-superblock DISK...` takes superblocks away";
const AS_FILE: &str = "`blockwork serve --disk DISK disk/FILE/1 --fuse FILE` shows a partition as a file; mount that with -o loop";
const TRACE: &str =
    "`blockwork trace VOLUME` prints what a running server does; with --output NAME, files for blkparse";
const NO_COLUMNS: &str = "columns cannot be chosen: --json prints all there is, for programs";
const BARE_DISKS: &str = "disks stand by themselves here, without an option";

const HABITS: &[Habit] = &[
    // The tools themselves.
    ("", &["lvs", "lvdisplay", "lvscan"], &[SHOW_LV]),
    ("", &["vgs", "vgdisplay", "vgscan"], &[SHOW_VG]),
    ("", &["pvs", "pvdisplay", "pvscan", "pvck", "vgck", "lvmdiskscan"], &[SCAN]),
    ("", &["wipefs"], &[SCAN, ZERO]),
    ("", &["lsblk", "blkid", "fdisk", "sfdisk", "gdisk", "parted", "ls", "list", "show", "info"], &[SCAN]),
    (
        "",
        &["lvcreate"],
        &[
            "`blockwork lv create VG/LV --size SIZE` makes a volume, or a thin pool with --thin-pool",
            SNAPSHOT,
        ],
    ),
    ("", &["lvremove"], &[REMOVE_LV]),
    ("", &["lvrename"], &[RENAME_LV]),
    ("", &["lvextend", "lvreduce", "lvresize"], &[RESIZE]),
    ("", &["lvchange", "vgchange", "activate"], &[SERVE, TAGS]),
    ("", &["lvconvert"], &[MERGE, "other conversions are LVM's to do, on disks that nobody serves"]),
    ("", &["pvcreate", "vgcreate"], &[CREATE_VG]),
    ("", &["vgextend"], &["`blockwork vg extend VG DISK...` adds disks to a group"]),
    ("", &["vgreduce"], &["`blockwork vg reduce VG DISK...` takes disks out of a group"]),
    ("", &["vgrename"], &["`blockwork vg rename VG NEW` gives a group another name"]),
    ("", &["pvchange", "pvmove", "pvremove", "pvresize", "vgremove", "vgsplit", "vgmerge"], &[LVM_ONLY]),
    ("", &["vgexport", "vgimport", "vgimportclone", "vgcfgbackup", "vgcfgrestore"], &[LVM_ONLY]),
    ("", &["mdadm"], &[CREATE_MD, EXAMINE, STATUS_MD, ASSEMBLE, MANAGE, ZERO]),
    ("", &["assemble"], &[ASSEMBLE]),
    (
        "",
        &["dmsetup"],
        &[
            "`blockwork serve --table FILE` makes devices of what `dmsetup table` prints, and serves them",
            "`blockwork message DEVICE 0 MESSAGE` is `dmsetup message`",
        ],
    ),
    (
        "",
        &["qemu-nbd", "nbdkit", "nbd-server", "qemu-storage-daemon"],
        &[
            "`blockwork serve --disk DISK --nbd unix:PATH` serves by NBD",
            "`blockwork serve --disk DISK --vhost-user PATH` serves a virtual machine's disk; `blockwork export add` one more",
        ],
    ),
    ("", &["btrace", "blktrace", "blkparse", "btt"], &[TRACE]),
    ("", &["losetup", "kpartx", "partx", "mount", "guestmount", "nbdfuse"], &[AS_FILE]),
    ("", &["umount", "fusermount", "fusermount3", "guestunmount", "stop"], &[STOP]),
    (
        "",
        &["iostat", "top", "stats"],
        &[
            "`blockwork serve --stats` and SIGUSR1 print statistics; `blockwork status` shows how disks are used",
        ],
    ),
    // Their verbs, below ours.
    (
        "export",
        &["ls", "list", "status"],
        &["`blockwork export show` shows volumes, and where they are reached"],
    ),
    ("export", &["create", "new", "attach"], &["`blockwork export add VOLUME --vhost-user PATH` makes one"]),
    ("export", &["del", "delete", "rm", "detach"], &["`blockwork export remove ADDRESS` takes one away"]),
    ("lv", &["extend", "reduce", "grow", "shrink"], &[RESIZE]),
    ("lv", &["change", "activate"], &[SERVE, TAGS]),
    ("lv", &["convert"], &[MERGE]),
    ("lv", &["ls", "list", "display", "scan", "status"], &[SHOW_LV]),
    ("lv", &["delete", "rm"], &[REMOVE_LV]),
    ("vg", &["change", "activate"], &[SERVE, TAGS]),
    ("vg", &["ls", "list", "display", "scan", "status"], &[SHOW_VG]),
    ("vg", &["remove", "delete", "rm", "split", "export", "import"], &[LVM_ONLY]),
    ("md", &["-C", "--create"], &[CREATE_MD]),
    ("md", &["-E", "--examine", "-X", "--examine-bitmap", "-Q", "--query"], &[EXAMINE]),
    ("md", &["-D", "--detail", "ls", "list", "show", "monitor", "-F", "--monitor", "--follow"], &[STATUS_MD]),
    ("md", &["-A", "--assemble", "assemble", "-I", "--incremental", "run", "start"], &[ASSEMBLE]),
    ("md", &["stop", "-S", "--stop"], &[STOP]),
    (
        "md",
        &["-a", "--add", "--re-add", "re-add", "-f", "--fail", "--set-faulty", "-r", "--remove", "--replace"],
        &[MANAGE],
    ),
    (
        "md",
        &["-G", "--grow"],
        &["`blockwork md grow md/NAME` makes use of what members have more than they had"],
    ),
    ("md", &["--zero-superblock", "zero", "wipe"], &[ZERO]),
    ("md", &["-W", "--wait"], &["`blockwork md wait md/NAME` waits until an array is in sync"]),
    // Options of theirs.
    ("lv create", &["-s", "--snapshot", "snapshot"], &[SNAPSHOT]),
    (
        "lv create",
        &["-T", "thin", "thin-pool"],
        &["--thin-pool makes a thin pool; --thin POOL --virtual-size SIZE a volume in one"],
    ),
    ("lv create", &["mirror"], &["--type raid1 makes mirrors, as LVM does today"]),
    ("lv create", &["-a", "--activate", "-k", "--setactivationskip", "-K"], &[SERVE]),
    (
        "lv create",
        &["-W", "--wipesignatures"],
        &["both ends of a new volume are zeroed in any case; --no-wipe leaves them"],
    ),
    ("lv snapshot", &["-s", "--snapshot"], &[SNAPSHOT]),
    (
        "lv resize",
        &["-r", "--resizefs"],
        &["file systems are not told: grow them behind this by resize2fs or xfs_growfs; shrink them before"],
    ),
    (
        "lv show",
        &["-o", "--options", "-O", "--sort", "-S", "--select", "--noheadings", "--units"],
        &[NO_COLUMNS],
    ),
    (
        "vg show",
        &["-o", "--options", "-O", "--sort", "-S", "--select", "--noheadings", "--units"],
        &[NO_COLUMNS],
    ),
    (
        "vg create",
        &["-y", "--yes", "-f"],
        &["nothing is asked; --force, written out, destroys what the disks hold"],
    ),
    (
        "vg extend",
        &["-y", "--yes", "-f"],
        &["nothing is asked; --force, written out, destroys what the disks hold"],
    ),
    (
        "vg reduce",
        &["--removemissing"],
        &["a physical volume that is missing is named by its UUID: `blockwork vg reduce VG UUID`"],
    ),
    ("md create", &["--homehost"], &["--name HOST:NAME tells the host"]),
    ("md create", &["-k", "--consistency-policy"], &["--bitmap internal or --bitmap none"]),
    ("md create", &["--disk"], &[BARE_DISKS]),
    ("md examine", &["--disk"], &[BARE_DISKS]),
    ("md examine", &["-X", "--examine-bitmap"], &["--bitmap shows bitmaps"]),
    (
        "md examine",
        &["-s", "--scan", "-b", "--brief", "-Y", "--export"],
        &["--json prints all there is, for programs"],
    ),
    ("md status", &["-s", "--scan"], &["all arrays are shown where none is named"]),
    ("scan", &["--disk", "-d"], &[BARE_DISKS]),
    ("serve", &["-k", "--socket", "-U", "--unix"], &["--nbd unix:PATH serves by NBD at a unix socket"]),
    ("serve", &["-p", "--port", "-b", "--bind"], &["--nbd HOST:PORT serves by NBD at a TCP address"]),
    (
        "serve",
        &["-f", "--format", "--image-opts"],
        &["disks are raw; of other formats, `qemu-img convert -O raw` makes a raw one"],
    ),
    (
        "serve",
        &["-x", "--export-name", "--exportname"],
        &["exports have the names of their volumes, which `blockwork scan` shows"],
    ),
    (
        "serve",
        &["-P", "--partition"],
        &["a partition is a volume: `blockwork serve --disk DISK disk/FILE/1`"],
    ),
    (
        "serve",
        &["-o", "--offset"],
        &["a table with a line `0 SECTORS linear DISK SECTOR` serves a part: --table FILE"],
    ),
    ("serve", &["-c", "--connect"], &["nbd-client makes /dev/nbd0 of what --nbd unix:PATH serves", AS_FILE]),
    (
        "serve",
        &["-d", "--daemon", "--daemonize", "--background"],
        &["--fork returns when the server is ready, and has it go on in the background"],
    ),
    (
        "serve",
        &["-t", "--persistent", "-e", "--shared"],
        &["clients come and go, any number at once, until SIGTERM: leave it out"],
    ),
    ("serve", &["-n", "--nocache", "--cache"], &["it is a disk's option: --disk DISK,cache=none"]),
    ("serve", &["--aio"], &["--io says who does the I/O"]),
    ("trace", &["-d", "--dev"], &[TRACE]),
];

/// The command line, or its end with what is wrong with it.
pub(crate) fn parse() -> Cli {
    let args: Vec<OsString> = std::env::args_os().collect();
    try_parse(&args).unwrap_or_else(|error| error.exit())
}

fn try_parse(args: &[OsString]) -> Result<Cli, Error> {
    let matches =
        Cli::command().try_get_matches_from(args).and_then(|matches| Cli::from_arg_matches(&matches));
    matches.map_err(|error| with_tips(error, args))
}

/// The same error, with the tips for what was typed in place of what clap guesses.
fn with_tips(mut error: Error, args: &[OsString]) -> Error {
    let kind = match error.kind() {
        ErrorKind::InvalidSubcommand => ContextKind::InvalidSubcommand,
        ErrorKind::UnknownArgument => ContextKind::InvalidArg,
        ErrorKind::InvalidValue => ContextKind::InvalidValue,
        _ => return error,
    };
    let Some(ContextValue::String(word)) = error.get(kind) else { return error };
    if let Some(tips) = tips(&verb(args), word) {
        for guess in
            [ContextKind::SuggestedSubcommand, ContextKind::SuggestedArg, ContextKind::SuggestedValue]
        {
            error.remove(guess);
        }
        let tips = tips.iter().map(|tip| (*tip).to_owned().into()).collect();
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(tips));
    }
    error
}

fn tips(verb: &str, word: &str) -> Option<&'static [&'static str]> {
    HABITS.iter().find(|(below, words, _)| *below == verb && words.contains(&word)).map(|(_, _, tips)| *tips)
}

/// The verb that the command line begins with, as far as it is one of ours: `lv create`.
fn verb(args: &[OsString]) -> String {
    let mut command: &Command = &Cli::command();
    let mut verb = Vec::new();
    for arg in args.iter().skip(1) {
        let Some(below) = command.find_subcommand(arg) else { break };
        verb.push(below.get_name());
        command = below;
    }
    verb.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The command below which a habit is, and how it is called.
    fn command_of(verb: &str) -> Command {
        let words = verb.split_whitespace();
        let below = |command: Command, word| command.find_subcommand(word).expect("a verb of ours").clone();
        words.fold(Cli::command(), below)
    }

    fn has_option(command: &Command, option: &str) -> bool {
        let long = option.strip_prefix("--");
        command.get_arguments().any(|arg| match long {
            Some(long) => arg.get_long_and_visible_aliases().is_some_and(|all| all.contains(&long)),
            None => arg.get_short().is_some_and(|short| option == format!("-{short}")),
        })
    }

    #[test]
    fn no_habit_is_something_that_the_command_has() {
        for (verb, words, _) in HABITS {
            let command = command_of(verb);
            for word in *words {
                assert!(command.find_subcommand(word).is_none(), "blockwork {verb} {word}");
                assert!(!word.starts_with('-') || !has_option(&command, word), "blockwork {verb} {word}");
                let times = HABITS.iter().filter(|(below, words, _)| below == verb && words.contains(word));
                assert_eq!(times.count(), 1, "blockwork {verb} {word}: one habit hides another");
            }
        }
    }

    #[test]
    fn commands_and_options_in_tips_are_there() {
        for (verb, _, tips) in HABITS {
            for tip in *tips {
                let quoted = tip.split('`').skip(1).step_by(2);
                let ours: Vec<String> =
                    quoted.filter_map(|text| text.strip_prefix("blockwork ")).map(named).collect();
                assert!(ours.iter().all(|ours| !ours.is_empty()), "{tip}");
                expect_options(&command_of(ours.first().map_or(verb, |ours| ours)), tip);
            }
        }
    }

    /// The verb that a command line of ours begins with.
    fn named(text: &str) -> String {
        let args: Vec<OsString> =
            ["blockwork"].into_iter().chain(text.split(' ')).map(OsString::from).collect();
        verb(&args)
    }

    fn expect_options(command: &Command, text: &str) {
        for option in text.split([' ', ',', ';', ':', '`']).filter(|word| word.starts_with("--")) {
            assert!(has_option(command, option), "{}: {option} in {text:?}", command.get_name());
        }
    }
}

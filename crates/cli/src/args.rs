//! The command line: verbs and their options. One definition gives the parser and the help.

use std::path::PathBuf;

use blockwork_daemon::GuestMemory;
use blockwork_format::blkif::VirtualDevice;
use blockwork_uring::Io;
use clap::builder::{PathBufValueParser, TypedValueParser};
use clap::{Args, Parser, Subcommand, ValueEnum, ValueHint};

use crate::completion::CompletionArgs;
use crate::export::ExportArgs;
use crate::lv::LvArgs;
use crate::man::ManArgs;
use crate::md::MdArgs;
use crate::vg::VgArgs;

/// Linux's block I/O stack in user space.
#[derive(Debug, Parser)]
#[command(name = "blockwork", version, propagate_version = true, max_term_width = 120)]
#[command(
    after_help = "A DISK is a path, nfs://SERVER/PATH, null:SIZE or memory:SIZE; options follow after commas, as in \
    disk.img,direct=off,nr_requests=64 (image of a 4Kn disk: logical_block_size=4096).\nA VOLUME is VG/LV, md/NAME, disk/FILENAME, disk/FILENAME/PARTITION or \
    dm/NAME; `blockwork scan` shows them."
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Show what disks hold: partitions, md arrays, LVM2 groups and volumes, file systems, health. Writes nothing.
    #[command(after_help = "Example:\n  blockwork scan disk.img\n  blockwork scan --json /dev/vdb *.img\n\n\
        Each device has one line, whose NAME `serve` takes; names in brackets are parts of other volumes.")]
    Scan(ScanArgs),
    /// Serve volumes to clients until SIGTERM.
    #[command(after_help = "Examples:\n  blockwork serve --disk disk.img --nbd unix:/tmp/disk.sock\n  \
        blockwork serve --disk disk.img disk/disk.img/1 --fuse /mnt/part1.img\n  \
        blockwork serve --disk sda.img sdb.img vg0/root --nbd unix:/tmp/root.sock\n  \
        blockwork serve --disk sda.img sdb.img vg0/root --vhost-user /run/root.sock\n  \
        blockwork serve --disk sda.img sdb.img vg0/root --xen 3/xvda\n  \
        blockwork serve --table stripes.table --nbd 127.0.0.1:10809 --stats\n  \
        blockwork serve --fork --pid-file disk.pid --disk disk.img --nbd unix:/tmp/disk.sock; kill $(cat disk.pid)\n\n\
        It prints `ready ADDRESS...` once every export accepts clients. SIGTERM, SIGINT (^C) and SIGHUP (unless \
        nohup has it ignored) answer what clients have asked for, flush the disks and end; a second SIGTERM or SIGINT ends at once. \
        SIGUSR1 prints statistics.")]
    Serve(ServeArgs),
    /// Show which ways running servers use for their disks, who has chosen these, and by which figures.
    #[command(
        after_help = "Examples:\n  blockwork status\n  blockwork status --json\n\nA line for each setting of a disk that can be had in \
        several ways (io, direct, linearize, fua, fixed): what is in force, whether that was chosen or asked for, and why; below \
        it what was measured, for each class of requests. Of a server whose disks are not open (serve --migratable), why that is; of \
        a guest whose memory is pinned (serve --guest-memory pinned), how much of it is locked."
    )]
    Status(StatusArgs),
    /// Show what happens to each I/O of a volume that is being served.
    #[command(
        after_help = "Examples:\n  blockwork trace disk/disk.img\n  blockwork trace dm/stripes -o t && \
        blkparse -i t\n\nWithout -o the events are printed as blkparse prints them, until ^C."
    )]
    Trace(TraceArgs),
    /// Show where running servers' volumes are reached, and give virtual machines disks while others go on.
    Export(ExportArgs),
    /// Make md arrays, look at them, and look after them.
    Md(MdArgs),
    /// Make, change and show volume groups of LVM2.
    Vg(VgArgs),
    /// Make, change and show logical volumes of LVM2.
    Lv(LvArgs),
    /// Tell a thin pool of a table something, as `dmsetup message` does, whether it is served or not.
    #[command(
        after_help = "Examples:\n  blockwork message dm/pool 0 create_thin 0\n  blockwork message --table thin.table dm/pool 0 create_thin 0\n  \
        blockwork message --table thin.table dm/pool 0 'create_snap 1 0'\n\n\
        Messages: create_thin ID, create_snap ID ORIGIN, delete ID, set_transaction_id CURRENT NEW, reserve_metadata_snap, \
        release_metadata_snap. A metadata device that begins with 4 KiB of zeros is made a pool first, as by Linux."
    )]
    Message(MessageArgs),
    /// Run a field report about Linux's block stack again: simulated devices, Linux's old behaviour beside ours.
    #[command(after_help = "Example:\n  blockwork reproduce discard --stack n2 --json")]
    Reproduce(ReproduceArgs),
    /// Try it: opens the disks of a Linux machine, serves their volumes to real clients, and shows what happened.
    #[command(after_help = "Example:\n  blockwork demo")]
    Demo(DemoArgs),
    /// Print what bash, zsh or fish needs to complete this command line.
    #[command(after_help = "Examples:\n  source <(blockwork completion bash)\n  \
        blockwork completion zsh >/usr/local/share/zsh/site-functions/_blockwork\n  \
        blockwork completion fish >~/.config/fish/completions/blockwork.fish\n\n`make install` puts all three where shells look for them.")]
    Completion(CompletionArgs),
    /// Write manual pages: one for blockwork, and one for each verb.
    #[command(after_help = "Example:\n  blockwork man ~/.local/share/man/man1 && man blockwork-serve\n\n\
        `make install` puts them where `man` looks for them.")]
    Man(ManArgs),
}

#[derive(Debug, Args)]
pub(crate) struct ScanArgs {
    /// Disks to look at.
    #[arg(value_name = "DISK", required_unless_present = "table", value_hint = ValueHint::FilePath)]
    pub(crate) disks: Vec<String>,
    /// Tables in dmsetup's syntax, whose disks are looked at as well.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) table: Vec<String>,
    /// Show queue limits.
    #[arg(long)]
    pub(crate) limits: bool,
    /// Show UUIDs: of what a device holds, or its own where it holds nothing that has one.
    #[arg(long)]
    pub(crate) uuids: bool,
    /// Print JSON: {"disks": [...], "arrays": [...], "groups": [...], "tables": [...]}, sizes in bytes.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// Disks: PATH[,option=value...], nfs://SERVER/PATH, null:SIZE or memory:SIZE. What follows the first and is no file is a VOLUME.
    #[arg(long, value_name = "DISK", num_args = 1.., required_unless_present = "table", value_hint = ValueHint::FilePath)]
    pub(crate) disk: Vec<String>,
    /// A stack in dmsetup's table syntax, served as dm/NAME: NAME stands before the lines, or is the file's stem.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) table: Vec<String>,
    /// Volumes to serve: all, where none is named. The first is NBD's default export.
    #[arg(value_name = "VOLUME")]
    pub(crate) volumes: Vec<String>,
    /// Serve by NBD at a unix socket or TCP address. Without it, sockets of a service manager (LISTEN_FDS) are used.
    #[arg(long, value_name = "unix:PATH|HOST:PORT")]
    pub(crate) nbd: Vec<String>,
    /// NBD clients at once; further ones are turned away. Each costs 0.3 MiB, and what it has under way.
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) nbd_clients: u16,
    /// Demand TLS of NBD clients, with the certificates in FOLDER (server-cert.pem, server-key.pem, ca-cert.pem).
    #[arg(long, value_name = "FOLDER", value_hint = ValueHint::DirPath)]
    pub(crate) tls_certificates: Option<PathBuf>,
    /// Serve only clients whose certificate is signed by ca-cert.pem, and not revoked by ca-crl.pem if FOLDER has that.
    #[arg(long, requires = "tls_certificates")]
    pub(crate) tls_verify_peer: bool,
    /// Allow NBD in clear text on addresses other than this machine's own.
    #[arg(long)]
    pub(crate) insecure: bool,
    /// Mount one volume over FILE, or any number as files in a folder.
    #[arg(long, value_name = "FILE", value_parser = PathBufValueParser::new().try_map(bare_path))]
    pub(crate) fuse: Vec<PathBuf>,
    /// Serve a volume to a virtual machine by vhost-user-blk, at a unix socket (`-chardev socket,id=c,path=PATH -device
    /// vhost-user-blk-pci,chardev=c` of QEMU, whose memory must be shared). Once for each volume, in their order.
    #[arg(long, value_name = "PATH", value_parser = PathBufValueParser::new().try_map(bare_path))]
    pub(crate) vhost_user: Vec<PathBuf>,
    /// Queues that a virtual machine may have on a disk; they are spread over the workers.
    #[arg(long, value_name = "N", default_value_t = 64, requires = "vhost_user",
          value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) queues: u16,
    /// Have the disks open only while a virtual machine uses them by --vhost-user, so that it may move to another host (live migration), where a
    /// server is started likewise on the same disks: that one waits until this one has let go of them, which is before the machine goes on there.
    #[arg(long, requires = "vhost_user", conflicts_with_all = ["nbd", "tls_certificates", "fuse", "xen", "no_exports", "log_writes"])]
    pub(crate) migratable: bool,
    /// Pages of the memory that virtual machines share by vhost-user. With huge ones large requests can be twice as fast, as disks are told of fewer
    /// pieces; better still, give the machine such when it starts (`hugetlb=on` of QEMU's memory-backend-memfd). Where all of it is pinned, the kernel need
    /// not find the pages of each request, which spares the processor some of what small ones take. Not for machines that give memory back while
    /// they run, by a balloon, free page reporting or postcopy migration: they would lose data without a word.
    #[arg(long, value_name = "PAGES", default_value = "as-is")]
    pub(crate) guest_memory: GuestMemoryArg,
    /// Serve a volume to a guest of Xen's as its disk VDEV (xvda, or a number), from dom0 or a driver domain. The guest is there
    /// already, running or paused (`xl create -p`), and its configuration does not name the disk. Once for each volume, in their order.
    #[arg(long, value_name = "DOMID/VDEV", value_parser = xen_disk)]
    pub(crate) xen: Vec<(u16, VirtualDevice)>,
    /// Begin with nothing to serve by: `blockwork export add` gives volumes to virtual machines as these come.
    #[arg(long, conflicts_with_all = ["nbd", "tls_certificates", "fuse", "vhost_user", "xen", "no_control"])]
    pub(crate) no_exports: bool,
    /// Write nothing to any disk.
    #[arg(short, long, alias = "readonly")]
    pub(crate) read_only: bool,
    /// A queue setting of all disks by its sysfs name, such as nomerges=2 or read_ahead_kb=1024; or, with LAYER, of all devices of
    /// a kind (md, raid, linear, striped, dm, part, thin-pool) or of one volume: discard_max_bytes, and sync_speed_min and sync_speed_max
    /// (KiB a second) of arrays, start_dirty_degraded (0 or 1) of those with parity, no_space_timeout (seconds),
    /// thin_pool_autoextend_threshold and thin_pool_autoextend_percent of thin pools, which are extended by so many percent when more of them is in use (100: never). `md:discard_max_bytes=524288` is how Linux's RAID10 was before 5.13.
    #[arg(long, value_name = "[LAYER:]KEY=VALUE")]
    pub(crate) set: Vec<String>,
    /// Threads that serve; connections are spread over them. Default: one a processor, at most 8.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) workers: Option<u16>,
    /// Who does the I/O: io_uring, or threads where it is forbidden (by a container's seccomp profile, or a sysctl) or missing.
    #[arg(long, value_name = "HOW", value_enum, default_value_t = IoArg::Auto)]
    pub(crate) io: IoArg,
    /// While requests are under way, look for their completions for up to so many microseconds before sleeping: less
    /// latency and higher rates, for more processor time. At most half of the processors look at a time. 0: never look. Without
    /// this, it is measured where looking pays.
    #[arg(long, value_name = "MICROSECONDS", value_parser = clap::value_parser!(u16).range(0..=1000))]
    pub(crate) poll: Option<u16>,
    /// Print statistics at the end.
    #[arg(long)]
    pub(crate) stats: bool,
    /// Record every write, discard and flush of the disks in dm-log-writes' format (FILE.0, FILE.1 ... for several).
    #[arg(long, value_name = "FILE")]
    pub(crate) log_writes: Option<PathBuf>,
    /// Do not open a control socket: `trace` will not find this server.
    #[arg(long)]
    pub(crate) no_control: bool,
    /// Give up, before any disk is looked at, what the server will not need: it opens no files but those that it was started with, and others of
    /// --sandbox-allow; makes no connections (but to NFS servers), runs no programs, and has no use of the kernel beyond that. Needs Linux 5.13.
    #[arg(long, value_name = "on|off", value_enum, default_value_t = Switch::Off, hide_possible_values = true)]
    pub(crate) sandbox: Switch,
    /// Files, devices and folders that a server in its sandbox may open as well, such as disks for `blockwork md add`, and folders for the sockets of
    /// `blockwork export add`.
    #[arg(long, value_name = "PATH", num_args = 1.., value_hint = ValueHint::AnyPath)]
    pub(crate) sandbox_allow: Vec<PathBuf>,
    /// Print the ready line and the statistics as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// Return when the server is ready, with exit code 0, and have it go on in the background. Where it cannot start, it says why, and its exit code is
    /// this command's.
    #[arg(long)]
    pub(crate) fork: bool,
    /// Add to FILE what the server says once it is ready: warnings, errors, statistics. Without it, that goes to standard error, and is not kept with --fork.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) log_file: Option<PathBuf>,
    /// Write the server's process number to FILE when it is ready; the file is removed at its end.
    #[arg(long, alias = "pidfile", value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) pid_file: Option<PathBuf>,
}

/// Something that is had or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Switch {
    /// It is had
    On,
    /// It is not
    Off,
}

/// A path, not an address as `--nbd` takes it or the ready line tells it: that would be the name of a file in some other folder.
pub(crate) fn bare_path(path: PathBuf) -> Result<PathBuf, String> {
    let text = path.to_string_lossy();
    let bare = ["unix:", "vhost-user:", "fuse:"].iter().find_map(|kind| text.strip_prefix(kind));
    match bare {
        Some(bare) => Err(format!("expected a path alone: {bare} (or ./{text}, if that is a file's name)")),
        None => Ok(path),
    }
}

/// Domains have numbers below this.
const FIRST_RESERVED_DOMAIN: u16 = 0x7ff0;

/// `3/xvda`: a guest and its disk.
pub(crate) fn xen_disk(text: &str) -> Result<(u16, VirtualDevice), String> {
    let (domain, device) = text.split_once('/').ok_or("expected DOMID/VDEV, such as 3/xvda")?;
    let number = domain.parse().ok().filter(|number| (1..FIRST_RESERVED_DOMAIN).contains(number));
    let expected =
        || format!("the domain is {domain:?}, expected its number, such as 3; `xl domid NAME` tells it");
    let device = device.parse().map_err(|error: blockwork_format::blkif::NotADevice| error.to_string())?;
    Ok((number.ok_or_else(expected)?, device))
}

#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    /// Print JSON: {"disks": [{"pid", "name", "sandbox", "decisions", "choices"}], "away": [{"pid", "volume", "sandbox", "why"}],
    /// "pinned": [{"pid", "volume", "sandbox", "address", "locked_bytes"}]}, decisions and choices as /v1/stats has them.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct TraceArgs {
    /// The volume, as the server names it; an array also as md/UUID.
    #[arg(value_name = "VOLUME")]
    pub(crate) volume: String,
    /// Write blktrace files NAME.blktrace.0, NAME.blktrace.1 ... for blkparse.
    #[arg(short, long, value_name = "NAME")]
    pub(crate) output: Option<PathBuf>,
    /// Stop after so many seconds.
    #[arg(short = 'w', long, value_name = "SECONDS", value_parser = seconds, allow_negative_numbers = true)]
    pub(crate) stopwatch: Option<f64>,
    /// Print one JSON object an event.
    #[arg(long, conflicts_with = "output")]
    pub(crate) json: bool,
}

/// Longer than any trace: 31 years.
const SECONDS_MAX: f64 = 1e9;

fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.0..=SECONDS_MAX).contains(seconds));
    seconds.ok_or_else(|| format!("expected seconds, 0 to {SECONDS_MAX}"))
}

#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// Keep the folder with the disks, and say where it is.
    #[arg(long)]
    pub(crate) keep: bool,
    /// Print the result as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct MessageArgs {
    /// The table with the pool, which nobody serves. What stands behind the pool in it may not be there yet. Without a table, the running
    /// server that has the pool tells it.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) table: Option<String>,
    /// Disks with volumes that the table names.
    #[arg(long, value_name = "DISK", requires = "table", value_hint = ValueHint::FilePath)]
    pub(crate) disk: Vec<String>,
    /// The pool: dm/NAME.
    #[arg(value_name = "DEVICE")]
    pub(crate) device: String,
    /// A sector of the target: 0.
    #[arg(value_name = "SECTOR")]
    pub(crate) sector: u64,
    /// The message.
    #[arg(value_name = "MESSAGE", required = true)]
    pub(crate) message: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct ReproduceArgs {
    #[command(subcommand)]
    pub(crate) report: ReproduceReport,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ReproduceReport {
    /// Discards under md's RAID10 (Launchpad 1896578): mkfs.xfs and fstrim on four 1.9 TB NVMe devices of an AWS i3.8xlarge.
    #[command(
        after_help = "Examples:\n  blockwork reproduce discard\n  blockwork reproduce discard --stack n2 --stack \
        raid0 --json\n\nTimes are virtual: how long it would take on such devices. All arrays together take a minute or \
        two of this machine's time. To have the old behaviour on an array of yours: `blockwork serve --set \
        md:discard_max_bytes=524288 ...`"
    )]
    Discard(ReproduceDiscardArgs),
    /// Reads through an LVM snapshot (Launchpad 1833319): cat of a 512 MiB file on a 200 GiB EBS volume behind NVMe.
    #[command(
        after_help = "Example:\n  blockwork reproduce merge --json\n\nTimes are virtual: how long it would take on such a \
        device. To have the old behaviour on disks of yours: `blockwork serve --set nomerges=2 ...`"
    )]
    Merge(ReproduceMergeArgs),
    /// A Xen guest's ring of one page (xen/block: add multi-page ring support): reads of a fast disk, with one page and with eight.
    #[command(
        after_help = "Example:\n  blockwork reproduce ring --json\n\nRates are virtual: reads a second on such a device. Whether a \
        guest of yours fills its ring: `blockwork serve --stats ...`"
    )]
    Ring(ReproduceRingArgs),
    /// Sequential reads through such a ring, of which the smaller one can be the faster: the second half of `ring` alone.
    #[command(
        after_help = "Example:\n  blockwork reproduce sequential --json\n\nRates are virtual: reads a second on such a device. What \
        our queue merges on disks of yours: `blockwork serve --stats ...`"
    )]
    Sequential(ReproduceRingArgs),
    /// Random reads of thin volumes (dm-devel): fio with 16 jobs of 32 reads on a device of 560,000 IOPS, against thick ones.
    #[command(
        after_help = "Examples:\n  blockwork reproduce thin --json\n  blockwork reproduce thin --real\n\nWithout --real, rates are \
        virtual: what there would be on such a device and so many cores."
    )]
    Thin(ReproduceThinArgs),
    /// Direct I/O to a file on NFS (raw-posix: Linearize direct I/O on Linux NFS): ffsb's jobs with linearize off, on and auto.
    #[command(
        after_help = "Examples:\n  blockwork reproduce linearize\n  blockwork reproduce linearize --kernel mended-later --noise 0.5 \
        --json\n  blockwork reproduce linearize --kernel broken-later --change-at 0.25 --change-until 0.75\n\nRates are virtual. What was found out about a file of yours: `blockwork status`"
    )]
    Linearize(ReproduceLinearizeArgs),
}

#[derive(Debug, Args)]
pub(crate) struct ReproduceLinearizeArgs {
    /// What the client's kernel does with elements: reported (a call of each), half (one of those that meet between pages, as in
    /// Linux 6.1), mended (one in all), mended-later, broken-later (in mid-run, see --change-at).
    #[arg(long, value_name = "KERNEL", default_value = "reported")]
    pub(crate) kernel: String,
    /// When a kernel changes that does: after that part of the time that the requests take with the patch, 0 to 1.
    #[arg(long, value_name = "PART", default_value_t = 0.5)]
    pub(crate) change_at: f64,
    /// The kernel does not change at once: from --change-at until this part, what further calls take moves by as much in each moment.
    #[arg(long, value_name = "PART")]
    pub(crate) change_until: Option<f64>,
    /// How much the times of calls vary: the deviation of their logarithm.
    #[arg(long, value_name = "SIGMA", default_value_t = 0.2, allow_negative_numbers = true)]
    pub(crate) noise: f64,
    /// Requests of each run.
    #[arg(long, value_name = "N", default_value_t = 40_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub(crate) requests: u32,
    /// Seed of the simulator.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Print JSON, rates in MB a virtual second.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ReproduceRingArgs {
    /// Seed of the simulator.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ReproduceThinArgs {
    /// Seed of the simulator.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Read on this machine, with a worker for each processor, from devices that answer at once; takes some seconds.
    #[arg(long, conflicts_with = "seed")]
    pub(crate) real: bool,
    /// Print JSON, rates in reads a second.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ReproduceMergeArgs {
    /// Seed of the simulator.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Print JSON, times in virtual seconds.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ReproduceDiscardArgs {
    /// Only on this array: a RAID10 layout (n2, f2, o2) or raid0. May be given more than once; default: all.
    #[arg(long, value_name = "LAYOUT")]
    pub(crate) stack: Vec<String>,
    /// Seed of the simulator.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Print JSON, times in virtual seconds.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Pages of guests' memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum GuestMemoryArg {
    /// As the virtual machine has it
    AsIs,
    /// Where all small pages of a huge one are there, they are gathered in it, bit by bit (Linux 6.1 or later)
    Huge,
    /// All of them are there and stay: locked memory, which counts against its limit once for each worker that serves queues of the machine. Not where the
    /// machine may give memory back while it runs: no balloon, no free page reporting, no postcopy migration
    Pinned,
}

impl From<GuestMemoryArg> for GuestMemory {
    fn from(arg: GuestMemoryArg) -> GuestMemory {
        match arg {
            GuestMemoryArg::AsIs => GuestMemory::AsIs,
            GuestMemoryArg::Huge => GuestMemory::Huge,
            GuestMemoryArg::Pinned => GuestMemory::Pinned,
        }
    }
}

/// Who does the I/O of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum IoArg {
    /// io_uring, and threads where there is none for us, with a warning that says why
    Auto,
    /// io_uring, or not at all
    #[value(name = "io_uring")]
    Uring,
    /// Threads, at up to three times the processor time for each request
    Threads,
}

impl From<IoArg> for Io {
    fn from(it: IoArg) -> Io {
        match it {
            IoArg::Auto => Io::Auto,
            IoArg::Uring => Io::Uring,
            IoArg::Threads => Io::Threads,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_of_a_guest_is_its_domain_and_its_name_or_number() {
        for text in ["3/xvdb", "3/51728"] {
            assert_eq!(xen_disk(text), Ok((3, VirtualDevice { number: 51728 })));
        }
        for (text, said) in [
            ("xvda", "expected DOMID/VDEV"),
            ("0/xvda", "the domain is \"0\", expected its number"),
            ("vm/xvda", "the domain is \"vm\""),
            ("3/sda", "\"sda\" is no virtual disk"),
        ] {
            let error = xen_disk(text).unwrap_err();
            assert!(error.contains(said), "{error}");
        }
    }
}

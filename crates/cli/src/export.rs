//! `blockwork export`: by what running servers' volumes are reached, and more of that for virtual machines, while others go on.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use blockwork_daemon::{
    ExportAnswer, ExportRequest, GuestDisk, VolumeStatus, ask_export, find_export, find_volume, servers,
};
use blockwork_format::escape;
use clap::builder::{PathBufValueParser, TypedValueParser};
use clap::{ArgGroup, Args, Subcommand};
use serde_json::json;

use crate::args::{GuestMemoryArg, bare_path, xen_disk};
use crate::out;
use crate::scan::size;

/// What a socket for a virtual machine is called in addresses.
const VHOST_USER: &str = "vhost-user:";

#[derive(Debug, Args)]
pub(crate) struct ExportArgs {
    #[command(subcommand)]
    verb: ExportVerb,
}

#[derive(Debug, Subcommand)]
enum ExportVerb {
    /// Show the volumes of running servers, and where clients reach them.
    #[command(after_help = "Example:\n  blockwork export show")]
    Show(ShowArgs),
    /// Make a served volume the disk of a virtual machine, at a socket of its own, or of a guest of Xen's.
    #[command(after_help = "Examples:\n  blockwork export add vg0/vm7 --vhost-user /run/vm7.sock\n  \
        blockwork export add vg0/vm8 --xen 8/xvda\n\n\
        It lasts as long as the server: the next one has what its command line names, and guests go on with that.")]
    Add(AddArgs),
    /// Take such a disk away again. Its volume stays served by whatever else there is.
    #[command(after_help = "Example:\n  blockwork export remove /run/vm7.sock")]
    Remove(RemoveArgs),
}

#[derive(Debug, Args)]
struct ShowArgs {
    /// Print JSON: {"volumes": [{"name", "bytes", "read_only", "exports", "pid"}]}.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
#[command(group(ArgGroup::new("to").required(true).args(["vhost_user", "xen"])))]
struct AddArgs {
    /// A volume that a server has: VG/LV, md/NAME or md/UUID, disk/FILENAME, ...
    #[arg(value_name = "VOLUME")]
    volume: String,
    /// Where the socket is to be (`-chardev socket,id=c,path=PATH,reconnect=1 -device vhost-user-blk-pci,chardev=c` of QEMU, whose memory
    /// must be shared).
    #[arg(long, value_name = "PATH", value_parser = PathBufValueParser::new().try_map(bare_path))]
    vhost_user: Option<PathBuf>,
    /// A guest of Xen's, which is there, running or paused, and its disk (xvda, or a number).
    #[arg(long, value_name = "DOMID/VDEV", value_parser = |text: &str| xen_disk(text).map(|_| text.to_owned()))]
    xen: Option<String>,
    /// Queues that the virtual machine may have on it; without this, 64.
    #[arg(long, value_name = "N", requires = "vhost_user", value_parser = clap::value_parser!(u16).range(1..=256))]
    queues: Option<u16>,
    /// What becomes of the virtual machine's memory (see `blockwork serve --help`); without this, what the server was started with.
    #[arg(long, value_name = "PAGES", requires = "vhost_user")]
    guest_memory: Option<GuestMemoryArg>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct RemoveArgs {
    /// Where it is, as `export show` shows it, or the path of its socket.
    #[arg(value_name = "ADDRESS")]
    address: String,
    /// Even if the guest has it: what it has asked for and not been answered stays in its rings, for whoever serves it next.
    #[arg(long)]
    force: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &ExportArgs) -> Result<()> {
    match &args.verb {
        ExportVerb::Show(args) => show(args.json),
        ExportVerb::Add(args) => add(args),
        ExportVerb::Remove(args) => remove(args),
    }
}

fn show(json: bool) -> Result<()> {
    let servers = servers()?;
    let all = &servers.answering;
    let volumes = || all.iter().flat_map(|server| server.status.volumes.iter().map(|it| (server.pid, it)));
    if json {
        let volume = |(pid, it): (u32, &VolumeStatus)| json!({ "name": it.name, "bytes": it.bytes, "read_only": it.read_only, "exports": it.exports, "pid": pid });
        out::print_json(&json!({ "volumes": volumes().map(volume).collect::<Vec<_>>() }))?;
        return Ok(servers.complete()?);
    }
    if volumes().next().is_none() {
        if !servers.silent.is_empty() {
            return Ok(servers.complete()?);
        }
        log::warn!(
            "{}",
            match all.is_empty() {
                true => "no server is running (of this user)",
                false => "no running server has a volume yet",
            }
        );
        return Ok(());
    }
    let mut rows = vec![["NAME", "SIZE", "SERVER", "AT"].map(str::to_owned)];
    for (pid, it) in volumes() {
        let exports: Vec<String> = it.exports.iter().map(|address| escape(address)).collect();
        rows.push([escape(&it.name), size(it.bytes), pid.to_string(), exports.join(" ")]);
    }
    out::print(&table(&rows))?;
    Ok(servers.complete()?)
}

fn table(rows: &[[String; 4]]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let [name, size, server] = [0, 1, 2].map(width);
    let line = |[a, b, c, d]: &[String; 4]| format!("{a:<name$}  {b:>size$}  {c:>server$}  {d}");
    rows.iter().map(|row| line(row).trim_end().to_owned() + "\n").collect()
}

fn add(args: &AddArgs) -> Result<()> {
    let to = match (&args.vhost_user, &args.xen) {
        (Some(path), _) => GuestDisk::VhostUser(absolute(path)?),
        (None, Some(disk)) => GuestDisk::Xen(disk.clone()),
        (None, None) => unreachable!("one of them is required"),
    };
    let server = find_volume(&args.volume)?;
    let (queues, guest_memory) = (args.queues, args.guest_memory.map(Into::into));
    let request = ExportRequest::Add { volume: args.volume.clone(), to, queues, guest_memory };
    tell(&ask_export(&server.socket, &request)?, args.json)
}

fn remove(args: &RemoveArgs) -> Result<()> {
    let of_socket = |path: &Path| format!("{VHOST_USER}{}", path.display());
    let path = args.address.strip_prefix(VHOST_USER).unwrap_or(&args.address);
    // As it is told, or the path of a socket that is told by another one.
    let spellings =
        [args.address.clone(), of_socket(Path::new(path)), of_socket(&absolute(Path::new(path))?)];
    let (address, socket) = find_export(&spellings)?;
    tell(&ask_export(&socket, &ExportRequest::Remove { address, force: args.force })?, args.json)
}

/// The server has another working directory, and is asked in text.
fn absolute(path: &Path) -> Result<PathBuf> {
    let absolute = std::path::absolute(path).with_context(|| format!("{}", path.display()))?;
    if absolute.to_str().is_none() {
        bail!("{}: the path of a socket that a server is asked for must be UTF-8", absolute.display());
    }
    Ok(absolute)
}

fn tell(answer: &ExportAnswer, json: bool) -> Result<()> {
    let ExportAnswer { said, volume, exports } = answer;
    if json {
        return out::print_json_done(&json!({ "said": said, "volume": volume, "exports": exports }));
    }
    out::print_done(&format!("{said}\n"))
}

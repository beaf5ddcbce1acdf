//! `--sandbox on`: before a server looks at what any disk holds, it gives up what it will not need. Whoever takes it over by a hostile image,
//! a client or a guest then has what it has, and not what its user could have.
//!
//! 1. It is entered once, by the only thread that there is, and so holds for all threads that come: workers, sessions, the control server, and
//!    the kernel's threads that work for their rings.
//! 2. Which files it may open is known by then: what the command line names, what a table names, what the server itself reads later
//!    ([`Allowed::of_the_server`]). **Nothing that stands in an image adds to it.**
//! 3. Who asks for it has it: where the kernel has no Landlock or no seccomp, the server does not start. Of a Landlock that is older than what is
//!    asked of it here ([`KNOWN`]), one warning says what is missing.
//!
//! Landlock (files, TCP, signals) decides what an attacker can reach, seccomp ([`calls`]) how much of the kernel. What both are worth, and what they
//! leave, is in `docs/threat-model.md`.

mod calls;

use std::error::Error;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, anyhow, bail};
use blockwork_daemon::socket_path;
use blockwork_engine::reserved_ports;
use blockwork_leaf::{Kind, LeafError, Spec};
use blockwork_volume::{VolumeError, disks_of_table};
use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, LandlockStatus, NetPort,
    PathBeneath, PathFd, Ruleset, RulesetAttr, RulesetCreatedAttr, Scope, make_bitflags,
};

use crate::args::{ServeArgs, Switch};
use crate::usage::bail_usage;

/// What is asked of Landlock: what came with this version and was tried.
const KNOWN: ABI = ABI::V6;

/// Whether this process is in it. There is no way out.
static IS_IN: AtomicBool = AtomicBool::new(false);

/// What came to Landlock when: `ABI`, Linux, and what cannot be refused before.
const SINCE: [(ABI, &str, &str); 4] = [
    (ABI::V3, "6.2", "truncating files"),
    (ABI::V4, "6.7", "TCP connections"),
    (ABI::V5, "6.10", "commands to devices (ioctl)"),
    (ABI::V6, "6.12", "signals to other processes, abstract unix sockets"),
];

/// Files that are read.
fn reads() -> BitFlags<AccessFs> {
    AccessFs::ReadFile.into()
}

/// Files and block devices that are read and written.
fn writes() -> BitFlags<AccessFs> {
    make_bitflags!(AccessFs::{ReadFile | WriteFile | Truncate | IoctlDev})
}

/// Folders below which everything is read.
fn reads_below() -> BitFlags<AccessFs> {
    make_bitflags!(AccessFs::{ReadFile | ReadDir})
}

/// Folders in which sockets are made and removed; they are opened to be locked.
fn has_sockets() -> BitFlags<AccessFs> {
    make_bitflags!(AccessFs::{ReadDir | MakeSock | RemoveFile})
}

/// What a server may do from then on.
struct Allowed {
    files: Vec<(PathBuf, BitFlags<AccessFs>)>,
    /// A disk is on an NFS server: which ports lead to it is found out by asking it.
    connects: bool,
}

/// Whether this process is in its sandbox.
pub(super) fn is_in() -> bool {
    IS_IN.load(Ordering::Relaxed)
}

/// What an error says, and what to do where the sandbox is the reason.
pub(super) fn said(error: &VolumeError) -> String {
    let (text, remedy) = (error.to_string(), remedy(error));
    // What else is to be done about such an error would not help.
    let of_disks = match error {
        VolumeError::Leaf(LeafError::Io { remedy, .. }) => remedy.as_str(),
        _ => "",
    };
    let text = if remedy.is_empty() { &text } else { text.strip_suffix(of_disks).unwrap_or(&text) };
    format!("{text}{remedy}")
}

/// What to do about an error, if the sandbox is the reason for it.
pub(super) fn remedy(error: &(dyn Error + 'static)) -> &'static str {
    let mut next = Some(error);
    let causes = std::iter::from_fn(|| {
        let cause = next?;
        next = cause.source();
        Some(cause)
    });
    let is_refused = causes
        .filter_map(|cause| cause.downcast_ref::<std::io::Error>())
        .any(|cause| cause.kind() == ErrorKind::PermissionDenied);
    if is_in() && is_refused {
        "; the server is in its sandbox, and was started with nothing that leads there: start it anew with --sandbox-allow PATH (the \
         file, or its folder), or without --sandbox"
    } else {
        ""
    }
}

/// Checks what goes with a sandbox, before anything is done.
pub(super) fn check(args: &ServeArgs) -> Result<()> {
    if args.sandbox == Switch::Off {
        if !args.sandbox_allow.is_empty() {
            bail_usage!("--sandbox-allow says what a sandbox allows: add --sandbox on");
        }
        return Ok(());
    }
    if !args.fuse.is_empty() {
        bail_usage!(
            "--fuse does not go with --sandbox on: in a sandbox of Landlock's nothing can be mounted or unmounted. Serve by NBD, and mount with \
             nbdfuse; or leave out --sandbox"
        );
    }
    if !args.xen.is_empty() {
        bail_usage!("--xen does not go with --sandbox on yet: leave out --sandbox");
    }
    let pipe = |path: &&String| fs::metadata(path).is_ok_and(|found| !found.is_file());
    if let Some(table) = args.table.iter().find(pipe) {
        bail_usage!(
            "--table {table}: it is no file, and a sandbox needs its disks before it is read again: write it to a file, or leave out --sandbox"
        );
    }
    Ok(())
}

/// Enters it.
///
/// # Errors
/// The kernel has not got what it takes, or other threads are there already.
pub(super) fn enter(args: &ServeArgs, disks: &[String]) -> Result<()> {
    let allowed = Allowed::of(args, disks)?;
    let threads = fs::read_dir("/proc/self/task").context("/proc/self/task: a sandbox needs /proc")?.count();
    if threads != 1 {
        bail!(
            "--sandbox: {threads} threads run already, for which it would not hold; report that, and serve without"
        );
    }
    let version = restrict(&allowed).map_err(|error| {
        anyhow!("--sandbox: {error:#}. Have the kernel offer it, or serve without --sandbox and let the service manager restrict the process")
    })?;
    if let Some(missing) = missing(version) {
        log::warn!("the sandbox is not whole: {missing}");
    }
    calls::refuse().context("--sandbox: seccomp: serve without --sandbox where the kernel has none")?;
    IS_IN.store(true, Ordering::Relaxed);
    Ok(())
}

/// What this version of Landlock lacks, if anything.
fn missing(version: ABI) -> Option<String> {
    let missing = SINCE.iter().filter(|(since, ..)| *since > version);
    let missing: Vec<String> = missing.map(|(_, linux, what)| format!("{what} (Linux {linux})")).collect();
    let version = version as i32;
    (!missing.is_empty())
        .then(|| format!("this kernel's Landlock (version {version}) cannot refuse {}", missing.join(", ")))
}

fn restrict(allowed: &Allowed) -> Result<ABI> {
    let mut rules = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(KNOWN))?
        .handle_access(AccessNet::BindTcp)?
        .scope(Scope::from_all(KNOWN))?;
    if !allowed.connects {
        rules = rules.handle_access(AccessNet::ConnectTcp)?;
    }
    let mut rules = rules.create()?;
    for (path, access) in &allowed.files {
        // What is not there, or may not be looked at, is told of by who opens it, who knows what it is for.
        let Ok(fd) = PathFd::new(path) else { continue };
        let access = if path.is_dir() { *access } else { *access & AccessFs::from_file(KNOWN) };
        rules = rules.add_rule(PathBeneath::new(fd, access))?;
    }
    if allowed.connects {
        // Some servers answer no other ports of a client's.
        for port in reserved_ports(0) {
            rules = rules.add_rule(NetPort::new(port, AccessNet::BindTcp))?;
        }
    }
    match rules.restrict_self()?.landlock {
        LandlockStatus::Available { effective_abi, .. } => Ok(effective_abi),
        LandlockStatus::NotEnabled => {
            bail!("the kernel has Landlock, and does not use it (`lsm=landlock,...` on its command line)")
        }
        LandlockStatus::NotImplemented => bail!(
            "there is no Landlock here: it is in Linux 5.13 and later (CONFIG_SECURITY_LANDLOCK), and a container's seccomp profile may \
             hide it"
        ),
    }
}

impl Allowed {
    fn of(args: &ServeArgs, disks: &[String]) -> Result<Allowed> {
        let mut allowed = Allowed { files: Vec::new(), connects: false };
        disks.iter().for_each(|disk| allowed.disk(disk, args.read_only));
        for table in &args.table {
            allowed.add(table, reads());
            disks_of_table(table)?.iter().for_each(|disk| allowed.disk(disk, args.read_only));
        }
        for path in args.nbd.iter().filter_map(|address| address.strip_prefix("unix:")) {
            allowed.add(folder_of(Path::new(path)), has_sockets());
        }
        args.vhost_user.iter().for_each(|path| allowed.add(folder_of(path), has_sockets()));
        args.tls_certificates.iter().for_each(|folder| allowed.add(folder, reads_below()));
        // How many logs there will be, and what they are called, follows from the disks.
        let logs = writes() | AccessFs::MakeReg | AccessFs::RemoveFile;
        args.log_writes.iter().for_each(|path| allowed.add(folder_of(path), logs));
        // It is open by then, and removed at the end.
        args.pid_file.iter().for_each(|path| allowed.add(folder_of(path), AccessFs::RemoveFile));
        if !args.no_control {
            let path = socket_path()
                .map_err(|error| anyhow!("{error}, or serve without a control socket (--no-control)"))?;
            allowed.add(folder_of(&path), has_sockets());
        }
        for path in &args.sandbox_allow {
            fs::metadata(path).with_context(|| format!("--sandbox-allow {}", path.display()))?;
            allowed.add(path, writes() | has_sockets());
        }
        allowed.of_the_server();
        Ok(allowed)
    }

    fn add(&mut self, path: impl Into<PathBuf>, access: impl Into<BitFlags<AccessFs>>) {
        self.files.push((path.into(), access.into()));
    }

    /// A disk as the command line or a table names it. What cannot be understood is told of by who opens it.
    fn disk(&mut self, spec: &str, read_only: bool) {
        let Ok(spec) = Spec::parse(spec) else { return };
        match spec.kind {
            Kind::File(path) if read_only || spec.read_only => self.add(path, reads()),
            Kind::File(path) => self.add(path, writes()),
            Kind::Nfs(_) if !self.connects => {
                self.connects = true;
                self.of_names();
            }
            Kind::Nfs(_) | Kind::Null(_) | Kind::Memory(_) => {}
        }
    }

    /// What a server's name is looked up with: the C library's settings, and the libraries that these name.
    fn of_names(&mut self) {
        for file in
            ["gai.conf", "host.conf", "hosts", "ld.so.cache", "nsswitch.conf", "resolv.conf", "services"]
        {
            self.add(Path::new("/etc").join(file), reads());
        }
        for folder in ["/lib", "/lib64", "/usr/lib", "/usr/lib64"] {
            self.add(folder, reads_below());
        }
    }

    /// What is read while disks are opened, volumes changed and workers started: who this process is, which mounts and users there are, the
    /// kernel's limits, the processors that it may use, and block devices as sysfs tells of them.
    fn of_the_server(&mut self) {
        for folder in
            ["/proc/self", "/sys/fs/cgroup", "/sys/devices/system/cpu", "/sys/dev/block", "/sys/class/block"]
        {
            self.add(folder, reads_below());
        }
        for file in ["vm/max_map_count", "kernel/io_uring_disabled", "kernel/hostname"] {
            self.add(Path::new("/proc/sys").join(file), reads());
        }
        // The folders that the links in those lead to; of loop devices, arrays and the like also those that come later.
        self.add("/sys/devices/virtual/block", reads_below());
        let devices = fs::read_dir("/sys/block").into_iter().flatten().flatten();
        for device in devices.filter_map(|it| it.path().canonicalize().ok()) {
            self.add(device, reads_below());
        }
    }
}

fn folder_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
        _ => PathBuf::from("."),
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::thread;

    use rustix::io::Errno;
    use rustix::process::{Pid, test_kill_process};

    use super::*;

    #[test]
    fn what_a_landlock_cannot_refuse_is_told_with_the_linux_that_can() {
        assert_eq!(missing(KNOWN), None);
        assert_eq!(missing(ABI::V7), None);
        let said = missing(ABI::V4).expect("it is older");
        assert!(
            said.contains("(version 4) cannot refuse commands to devices (ioctl) (Linux 6.10), signals"),
            "{said}"
        );
        assert!(missing(ABI::V1).is_some_and(|said| said.contains("TCP connections (Linux 6.7)")));
    }

    #[test]
    fn what_is_not_named_cannot_be_opened_and_nobody_be_connected_to() {
        let folder = tempfile::tempdir().unwrap();
        let [named, read, other] = ["named", "read", "other"].map(|name| folder.path().join(name));
        for path in [&named, &read, &other] {
            fs::write(path, "its bytes").unwrap();
        }
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let files = vec![(named.clone(), writes()), (read.clone(), reads())];
        // Its rules are a thread's, and of those that it starts.
        let restricted = thread::spawn(move || {
            let version = restrict(&Allowed { files, connects: false }).unwrap();
            let open = |path: &Path, write| fs::OpenOptions::new().read(true).write(write).open(path);
            let denied = |result: std::io::Result<()>| {
                result.is_err_and(|error| error.kind() == ErrorKind::PermissionDenied)
            };
            open(&named, true).unwrap();
            open(&read, false).unwrap();
            assert!(denied(open(&read, true).map(drop)));
            assert!(denied(open(&other, false).map(drop)));
            assert!(denied(fs::write(other.with_extension("new"), "")));
            assert!(denied(fs::create_dir(other.with_extension("folder"))));
            assert!(denied(std::os::unix::fs::symlink(&other, other.with_extension("link"))));
            assert!(denied(fs::remove_file(&named)) && denied(fs::rename(&read, &named)));
            if version >= ABI::V4 {
                assert!(denied(TcpStream::connect(address).map(drop)));
                assert!(denied(TcpListener::bind("127.0.0.1:0").map(drop)));
            }
            // Root may signal anybody, elsewhere.
            let of_init = test_kill_process(Pid::INIT);
            assert!(version < ABI::V6 || of_init == Err(Errno::PERM), "{of_init:?}");
        });
        restricted.join().expect("no panic");
        TcpStream::connect(address).expect("elsewhere all is as it was");
    }

    #[test]
    fn outside_of_a_sandbox_nothing_is_said_about_it() {
        let source = std::io::Error::from(ErrorKind::PermissionDenied);
        assert_eq!(remedy(&source), "");
        let error =
            LeafError::Io { name: "a.img".into(), what: "open", source, remedy: "; look at it".into() };
        let error = VolumeError::from(error);
        assert_eq!(said(&error), error.to_string());
    }
}

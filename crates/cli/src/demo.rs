//! `blockwork demo`: the main job on the disks of a real Linux machine, in a temporary folder.
//!
//! Four disks that the real kernel wrote (GPT, md RAID10, LVM2, ext4, XFS) are scanned, served by this very program, and read
//! by real clients: all is compared with what that kernel read. Then a disk is lost; then there is writing, and each half
//! of the mirrors must have it. What a machine does not have (FUSE, root, nbdcopy) is left out and said so. It fails if
//! anything does not verify, and leaves nothing behind.

mod account;
mod disks;
mod ext4;
mod kernel;
mod pieces;
mod reading;
mod server;
mod tracing;
mod writing;

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use signal_hook::flag;

use crate::args::DemoArgs;
use crate::nbd_client::NbdClient;
use crate::out;
use crate::signals;
use disks::Manifest;
use server::{MOUNTS, SOCKET, Server, own_command};

/// The volumes that are served. The first is ext4, which the demo can read by itself.
const VOLUMES: [&str; 2] = ["vg0/root", "vg0/data"];

/// What the demo found, for `--json`. All that is in it has been verified.
#[derive(Debug, Default, Serialize)]
struct Outcome {
    /// The kernel that made the disks, and what it read of the volumes that were served.
    kernel: String,
    volumes: Vec<VolumeOutcome>,
    /// Files of the first volume that were read over NBD.
    files: usize,
    /// Files that the kernel read over FUSE and loop devices.
    files_by_kernel: usize,
    nbdcopy: bool,
    fuse: bool,
    /// What this machine does not have, and why.
    skipped: Vec<String>,
    write: Writing,
}

#[derive(Debug, Serialize)]
struct VolumeOutcome {
    name: String,
    bytes: u64,
    sha256: String,
}

#[derive(Debug, Default, Serialize)]
struct Writing {
    /// Of 4 KiB each.
    client_writes: u64,
    /// Of all disks.
    disk_writes: u64,
    seconds: f64,
}

pub(crate) fn run(args: &DemoArgs) -> Result<()> {
    let folder = tempfile::Builder::new().prefix("blockwork-demo-").tempdir();
    let folder = folder.context(
        "the folder for the demo's disks cannot be made; set TMPDIR to one that this user may write to",
    )?;
    let mut demo = Demo {
        folder: folder.path().to_owned(),
        quiet: args.json,
        interrupted: interruption()?,
        manifest: Manifest::read()?,
        outcome: Outcome::default(),
    };
    let result = demo.run();
    let removed = if args.keep {
        out::tell(&format!("kept: {}\n", folder.keep().display()));
        Ok(())
    } else {
        folder.close().context("removing the demo's folder")
    };
    result.and(removed)?;
    if args.json {
        out::print_json(&demo.outcome)?;
    }
    Ok(())
}

/// Set by ^C, SIGTERM or SIGHUP: what was started is taken down in order then. A second one ends us at once.
fn interruption() -> Result<Arc<AtomicBool>> {
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in signals::ending() {
        flag::register_conditional_shutdown(signal, 128 + signal, interrupted.clone())?;
        flag::register(signal, interrupted.clone())?;
    }
    Ok(interrupted)
}

struct Demo {
    folder: PathBuf,
    quiet: bool,
    interrupted: Arc<AtomicBool>,
    manifest: Manifest,
    outcome: Outcome,
}

impl Demo {
    fn run(&mut self) -> Result<()> {
        let start = Instant::now();
        self.outcome.kernel = self.manifest.kernel.clone();
        self.step(&format!("Four disks as Linux {} left them: GPT, RAID10, LVM", self.manifest.kernel))?;
        self.manifest.unpack(&self.folder)?;
        self.show_scan(|_| true)?;

        self.step("Their volumes, served, and read by clients")?;
        let (server, fuse) = self.serve_with_fuse()?;
        self.read_volumes()?;
        self.read_files()?;
        self.nbdcopy()?;
        if fuse {
            self.read_through_fuse()?;
        }
        self.step("What becomes of contiguous small reads")?;
        self.trace()?;
        self.step("What each layer did to all that was asked so far")?;
        let report = server.stop()?;
        self.say(&account::table(&report));
        self.manifest.check_disks(&self.folder)?;
        self.say("Nothing was written: the disks are the same to the bit.");

        self.step("A disk is lost")?;
        self.lose_a_disk()?;

        self.step("A client writes")?;
        self.write()?;
        self.say(&format!("\nEverything verified, in {:.1} s.", start.elapsed().as_secs_f64()));
        self.say_what_was_skipped();
        Ok(())
    }

    fn say(&self, text: &str) {
        if !self.quiet {
            // Whoever listened may have heard enough (`| head`): what was begun is still checked to its end.
            let _ = writeln!(std::io::stdout(), "{text}");
        }
    }

    /// Begins a part of the story.
    fn step(&self, title: &str) -> Result<()> {
        self.check_interruption()?;
        self.say(&format!("\n# {title}\n"));
        Ok(())
    }

    fn check_interruption(&self) -> Result<()> {
        ensure!(!self.interrupted.load(Ordering::Relaxed), "interrupted");
        Ok(())
    }

    fn skip(&mut self, what: String) {
        self.outcome.skipped.push(what);
    }

    fn say_what_was_skipped(&self) {
        for skipped in &self.outcome.skipped {
            self.say(&format!("Left out: {skipped}."));
        }
    }

    /// `blockwork scan` of all disks; its standard output.
    fn scan(&self, options: &[&str]) -> Result<String> {
        let mut command = own_command(&self.folder)?;
        let done = command.arg("scan").args(options).args(self.manifest.images()).output()?;
        ensure!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr).trim_end());
        Ok(String::from_utf8(done.stdout)?)
    }

    /// The same, shown: the lines that are of interest.
    fn show_scan(&self, shown: impl Fn(&str) -> bool) -> Result<()> {
        self.say(&format!("$ blockwork scan {}", self.manifest.images().join(" ")));
        let text = self.scan(&[])?;
        text.lines().filter(|line| shown(line)).for_each(|line| self.say(line));
        Ok(())
    }

    /// A server of these disks and the demo's volumes.
    fn serve(&self, images: &[String], options: &[&str]) -> Result<Server> {
        let mut arguments = vec!["serve".to_owned(), "--disk".to_owned()];
        arguments.extend_from_slice(images);
        arguments.extend(VOLUMES.map(str::to_owned));
        arguments.extend(["--nbd".to_owned(), format!("unix:{SOCKET}")]);
        arguments.extend(options.iter().map(|option| (*option).to_owned()));
        arguments.extend(["--stats".to_owned(), "--json".to_owned()]);
        Server::start(&self.folder, &arguments)
    }

    /// All disks, for reading; with FUSE where that is possible, and whether it is.
    fn serve_with_fuse(&mut self) -> Result<(Server, bool)> {
        let images = self.manifest.images();
        std::fs::create_dir(self.folder.join(MOUNTS))?;
        match self.serve(&images, &["--read-only", "--fuse", MOUNTS]) {
            Ok(server) => {
                self.outcome.fuse = true;
                self.say(&server.shown);
                Ok((server, true))
            }
            Err(error) => {
                let server = self.serve(&images, &["--read-only"])?;
                self.say(&server.shown);
                self.skip(format!("the volumes as files, by FUSE ({error:#})"));
                Ok((server, false))
            }
        }
    }

    fn client(&self, volume: &str) -> Result<NbdClient> {
        NbdClient::connect(&self.folder.join(SOCKET), volume)
    }
}

/// Whether what was found is what it should be, by SHA-256.
fn same(what: &str, found: &str, expected: &str) -> Result<()> {
    ensure!(found == expected, "{what}: SHA-256 {found}, expected {expected}");
    Ok(())
}

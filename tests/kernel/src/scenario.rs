//! One script and its disks, and what it said.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::error::GuestError;
use crate::guest::Guest;

/// How long a script may take, unless said otherwise: a hundred times what it takes, since machines are shared.
const TIMEOUT: Duration = Duration::from_secs(300);
const SECTOR_SIZE: u32 = 512;

/// What is behind a disk of the guest.
#[derive(Debug, Clone)]
pub(crate) enum Backing {
    File(PathBuf),
    Nbd { socket: PathBuf, export: String },
}

/// A disk for the guest.
#[derive(Debug, Clone)]
pub struct Disk {
    pub(crate) backing: Backing,
    pub(crate) read_only: bool,
    pub(crate) sector_size: u32,
}

impl Disk {
    /// The raw contents of a file.
    pub fn file(path: impl Into<PathBuf>) -> Disk {
        Disk { backing: Backing::File(path.into()), read_only: false, sector_size: SECTOR_SIZE }
    }

    /// An export of an NBD server that listens at a Unix socket: the kernel in the guest on top of what is served here.
    pub fn nbd(socket: impl Into<PathBuf>, export: impl Into<String>) -> Disk {
        let backing = Backing::Nbd { socket: socket.into(), export: export.into() };
        Disk { backing, read_only: false, sector_size: SECTOR_SIZE }
    }

    /// The guest may not write to it.
    pub fn read_only(self) -> Disk {
        Disk { read_only: true, ..self }
    }

    /// Its logical and physical block size in bytes; 512 unless said otherwise.
    pub fn sector_size(self, bytes: u32) -> Disk {
        Disk { sector_size: bytes, ..self }
    }
}

impl From<&Path> for Disk {
    fn from(path: &Path) -> Disk {
        Disk::file(path)
    }
}

impl From<PathBuf> for Disk {
    fn from(path: PathBuf) -> Disk {
        Disk::file(path)
    }
}

impl From<&PathBuf> for Disk {
    fn from(path: &PathBuf) -> Disk {
        Disk::file(path)
    }
}

/// Makes a sparse file of so many bytes, and returns its path.
///
/// # Errors
/// It is there already, or cannot be made.
pub fn create_disk(path: impl Into<PathBuf>, bytes: u64) -> Result<PathBuf, GuestError> {
    let path = path.into();
    let file = File::create_new(&path).and_then(|file| file.set_len(bytes));
    file.map_err(GuestError::file("cannot make the disk", &path))?;
    Ok(path)
}

/// What a script said.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Output {
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
    /// Its exit status, 128 and more for a signal; 0 also for one that was ended by a power cut.
    pub exit: i32,
    /// The files that it left in `/out`, by their paths below that.
    pub files: BTreeMap<String, Vec<u8>>,
    /// How long it took, without plugging disks.
    pub took: Duration,
}

impl fmt::Display for Output {
    /// For error messages: the whole of what it said, from a new line on.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, text) in [("output", &self.stdout), ("errors", &self.stderr)] {
            if !text.is_empty() {
                write!(f, "\n-- {name}\n{}", text.trim_end())?;
            }
        }
        Ok(())
    }
}

/// A script in the making; [`Guest::scenario`] starts one.
#[derive(Debug)]
#[must_use = "a scenario does nothing until it is run"]
pub struct Scenario<'a> {
    guest: &'a Guest,
    pub(crate) disks: Vec<(String, Disk)>,
    pub(crate) inputs: Vec<(String, Vec<u8>)>,
    pub(crate) variables: Vec<(String, String)>,
    pub(crate) script: String,
    pub(crate) timeout: Duration,
    pub(crate) echo: bool,
}

impl<'a> Scenario<'a> {
    pub(crate) fn new(guest: &'a Guest) -> Scenario<'a> {
        Scenario {
            guest,
            disks: Vec::new(),
            inputs: Vec::new(),
            variables: Vec::new(),
            script: String::new(),
            timeout: TIMEOUT,
            echo: false,
        }
    }

    /// Attaches a disk, which the script finds as `/d/NAME`. The name is of letters, digits, `-`, `_` and `.`.
    pub fn disk(mut self, name: &str, disk: impl Into<Disk>) -> Self {
        self.disks.push((name.to_owned(), disk.into()));
        self
    }

    /// Puts a file into the guest, which the script finds as `/in/NAME`.
    pub fn input(mut self, name: &str, contents: impl Into<Vec<u8>>) -> Self {
        self.inputs.push((name.to_owned(), contents.into()));
        self
    }

    /// Sets a variable of the script.
    pub fn variable(mut self, name: &str, value: impl Into<String>) -> Self {
        self.variables.push((name.to_owned(), value.into()));
        self
    }

    /// The script: bash, as root, in `/tmp`; the first command that fails ends it. `guest/lib.sh` has functions for it. What is
    /// left in `/out` is handed back.
    pub fn script(mut self, script: impl Into<String>) -> Self {
        self.script = script.into();
        self
    }

    /// How long the script may take, instead of five minutes.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Also shows what the script says, as it says it, on our own output.
    pub fn echo(mut self) -> Self {
        self.echo = true;
        self
    }

    /// Runs it. Scenarios of one guest take turns.
    ///
    /// # Errors
    /// There is no guest to be had, a disk cannot be attached, the script fails, takes too long or kills the guest, or leaves
    /// something that holds the disks. Whatever it is, the disks are out of the guest afterwards.
    pub fn run(self) -> Result<Output, GuestError> {
        self.guest.run(&self)
    }

    /// Runs it until it calls `power_cut`, upon which the guest is killed: what the kernel had in memory is lost, what it had
    /// written to the disks is not. The guest boots anew when it is next needed.
    ///
    /// # Errors
    /// As [`Scenario::run`], and the script ends without that call.
    pub fn run_until_power_cut(self) -> Result<Output, GuestError> {
        self.guest.run_until_power_cut(&self)
    }
}

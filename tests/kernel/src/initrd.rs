//! The initial RAM disk: busybox and modules to find the root file system, the agent, and what starts it.
//!
//! A cpio archive of the form `newc`, not compressed: unpacking by an emulated processor takes longer than copying.

use std::fs;
use std::path::Path;

use crate::error::GuestError;
use crate::programs::{command, complete};
use crate::system;

const INIT: &str = include_str!("../guest/init");
const START: &str = include_str!("../guest/start");
/// The agent and what it is compiled with.
const AGENT: [&str; 4] = [
    include_str!("agent/main.rs"),
    include_str!("held.rs"),
    include_str!("wire.rs"),
    include_str!("pattern.rs"),
];

const FOLDER: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;

/// All that decides what it is, beside the system.
pub(crate) fn ingredients() -> impl std::hash::Hash {
    (INIT, START, AGENT)
}

/// Makes the file `to`, for the system in the folder `system`.
pub(crate) fn make(system: &Path, to: &Path) -> Result<(), GuestError> {
    let agent = to.with_extension("agent");
    compile_agent(&agent)?;
    let mut archive = Archive::default();
    for folder in ["bin", "dev", "modules", "system"] {
        archive.add(folder, FOLDER, &[]);
    }
    archive.add("init", PROGRAM, INIT.as_bytes());
    archive.add("start", PROGRAM, START.as_bytes());
    archive.add("agent", PROGRAM, &read(&agent)?);
    archive.add("bin/busybox", PROGRAM, &read(&system.join(system::BUSYBOX))?);
    let modules = system.join(system::MODULES);
    for entry in fs::read_dir(&modules).map_err(GuestError::file("cannot list", &modules))?.flatten() {
        let name = format!("modules/{}", entry.file_name().to_string_lossy());
        archive.add(&name, PROGRAM, &read(&entry.path())?);
    }
    fs::write(to, archive.end()).map_err(GuestError::file("cannot write", to))?;
    fs::remove_file(&agent).map_err(GuestError::file("cannot remove", agent))
}

fn read(path: &Path) -> Result<Vec<u8>, GuestError> {
    fs::read(path).map_err(GuestError::file("cannot read", path))
}

fn compile_agent(to: &Path) -> Result<(), GuestError> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/agent/main.rs");
    let mut rustc = command(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    rustc.args([
        "--edition=2024",
        "--crate-name=agent",
        "-Copt-level=2",
        "-Cstrip=symbols",
        "-Ctarget-feature=+crt-static",
    ]);
    complete("compiling the guest's agent", rustc.arg("-o").arg(to).arg(source)).map(drop)
}

/// A cpio archive in the making.
#[derive(Default)]
struct Archive {
    bytes: Vec<u8>,
    files: u32,
}

impl Archive {
    fn add(&mut self, name: &str, mode: u32, contents: &[u8]) {
        self.files += 1;
        self.entry(name, self.files, mode, contents);
    }

    fn end(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, 0, &[]);
        self.bytes
    }

    fn entry(&mut self, name: &str, inode: u32, mode: u32, contents: &[u8]) {
        let (links, size, name_size) = (1, contents.len(), name.len() + 1);
        // Magic, inode, mode, uid, gid, links, mtime, size, device (2), device it is (2), name's length, checksum (of another form).
        let head = format!(
            "070701{inode:08x}{mode:08x}{0:08x}{0:08x}{links:08x}{0:08x}{size:08x}{0:08x}{0:08x}{0:08x}{0:08x}{name_size:08x}{0:08x}{name}\0",
            0
        );
        for part in [head.as_bytes(), contents] {
            self.bytes.extend_from_slice(part);
            self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
        }
    }
}

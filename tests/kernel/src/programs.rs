//! Programs of the host: how they are started, and what is said when one is missing or fails.

use std::ffi::OsStr;
use std::io;
use std::process::{Command, Output};

use crate::error::GuestError;

/// Programs and the Debian packages that have them; scripts/install-test-tools lists the same.
const PACKAGES: [(&str, &str); 8] = [
    ("apt-get", "apt"),
    ("depmod", "kmod"),
    ("dpkg-deb", "dpkg"),
    ("mkfs.ext4", "e2fsprogs"),
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("rustc", "rustup's toolchain or rustc"),
    ("setpriv", "util-linux"),
    ("xz", "xz-utils"),
];

/// So much of what a program said is shown.
const SAID_LINES: usize = 20;

/// A command, also of the folders for the administrator, which are not in everyone's search path.
pub(crate) fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    let path = std::env::var_os("PATH").unwrap_or_default().to_string_lossy().into_owned();
    command.env("PATH", format!("{path}:/usr/sbin:/sbin"));
    command
}

/// Runs it to its end. Errors: it is not there, or fails; `what` it was to do.
pub(crate) fn complete(what: &str, command: &mut Command) -> Result<Output, GuestError> {
    let output = command.output().map_err(|error| not_started(command, error))?;
    if output.status.success() {
        return Ok(output);
    }
    let said = [output.stdout, output.stderr].concat();
    Err(GuestError::Program {
        what: what.to_owned(),
        status: output.status.to_string(),
        said: tail(&said, SAID_LINES),
    })
}

/// Why a program could not be started.
pub(crate) fn not_started(command: &Command, source: io::Error) -> GuestError {
    let program = command.get_program().to_string_lossy().into_owned();
    match PACKAGES.iter().find(|(name, _)| *name == program) {
        Some((_, package)) if source.kind() == io::ErrorKind::NotFound => {
            GuestError::Missing { program, package }
        }
        _ => GuestError::File { what: "cannot start", path: program.into(), source },
    }
}

/// The last lines of a text.
pub(crate) fn tail(text: &[u8], lines: usize) -> String {
    let text = String::from_utf8_lossy(text).replace('\r', "");
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

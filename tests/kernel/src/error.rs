//! What can go wrong between a test and the guest, each with what was seen and what to do.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use crate::scenario::Output;

/// Why there is no guest, or no output of it.
#[derive(Debug, thiserror::Error)]
pub enum GuestError {
    /// A program of the host is not there.
    #[error(
        "{program} is not installed; Debian has it in {package} (scripts/install-test-tools installs all that tests need)"
    )]
    Missing {
        /// Its name.
        program: String,
        /// The Debian package that has it.
        package: &'static str,
    },
    /// A program of the host ended with an error.
    #[error("{what} failed with {status}:\n{said}")]
    Program {
        /// What was to be done.
        what: String,
        /// How the program ended.
        status: String,
        /// The end of what it said.
        said: String,
    },
    /// A file of the host cannot be used.
    #[error("{what} {}: {source}", path.display())]
    File {
        /// What was to be done with it.
        what: &'static str,
        /// Which.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// What a package of Debian holds is not what is expected of it.
    #[error("{}: {found}", path.display())]
    Package {
        /// The file of the package.
        path: PathBuf,
        /// What is wrong with it, and what to do.
        found: String,
    },
    /// The kernel did not get as far as running scripts.
    #[error("the guest did not boot within {} s\n-- end of its console\n{console}", after.as_secs())]
    NoBoot {
        /// How long it had.
        after: Duration,
        /// The end of the console, and what QEMU said.
        console: String,
    },
    /// QEMU ended: the kernel panicked, was switched off, or QEMU could not start.
    #[error("the guest is gone while {during}\n-- end of its console\n{console}")]
    Gone {
        /// What was going on.
        during: String,
        /// The end of the console, and what QEMU said.
        console: String,
    },
    /// The guest runs and does not answer.
    #[error("the guest hangs: no answer {} s after its script should have ended; it was killed\n-- end of its console\n{console}", after.as_secs())]
    Hung {
        /// How long it was waited for.
        after: Duration,
        /// The end of the console, and what QEMU said.
        console: String,
    },
    /// The script took too long and was killed.
    #[error("the script was killed: it did not end within {} s (Scenario::timeout sets how long){output}", after.as_secs())]
    TimedOut {
        /// How long it had.
        after: Duration,
        /// What it said until then.
        output: Box<Output>,
    },
    /// The script ended with an error.
    #[error("the script failed with exit status {}{output}", output.exit)]
    Failed {
        /// What it said.
        output: Box<Output>,
    },
    /// The script ended without the power cut that was asked for.
    #[error("the script ended, with exit status {}, without calling power_cut{output}", output.exit)]
    NoCut {
        /// What it said.
        output: Box<Output>,
    },
    /// Something in the guest still holds the disks after the script.
    #[error(
        "the script ended well, but the guest could not let go of its disks; end the script with nothing in use{output}"
    )]
    Held {
        /// What the guest said when it stopped arrays, volume groups and mounts.
        output: Box<Output>,
    },
    /// QEMU refused a command.
    #[error("QEMU refused {command}: {reason}")]
    Refused {
        /// Of QMP.
        command: String,
        /// In QEMU's words.
        reason: String,
    },
}

impl GuestError {
    pub(crate) fn file(what: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> GuestError {
        let path = path.into();
        move |source| GuestError::File { what, path, source }
    }
}

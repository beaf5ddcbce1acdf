//! The real kernel as judge: boots Debian's Linux under QEMU, gives it disk files, and runs scripts in it.
//!
//! ```no_run
//! # fn f() -> Result<(), blockwork_kernel::GuestError> {
//! use blockwork_kernel::{Guest, create_disk};
//! let (a, b) = (create_disk("a.img", 64 << 20)?, create_disk("b.img", 64 << 20)?);
//! let script = "mdadm --create /dev/md0 --run --level=1 --raid-devices=2 /d/a /d/b; mdadm --detail /dev/md0";
//! let output = Guest::shared().scenario().disk("a", a).disk("b", b).script(script).run()?;
//! println!("{}", output.stdout);
//! # Ok(())
//! # }
//! ```
//!
//! A guest boots in a few seconds (no KVM is needed) and then runs any number of scenarios, one after the other; each has its own
//! disks, which are plugged in before it and out after it. What the pieces are:
//!
//! - [`Guest`] is a machine that boots when it is first needed, [`Shared`] one that tests hand on to each other; [`Scenario`] one
//!   script with its disks; [`Output`] what it said.
//! - `packages`, `system` and `initrd` make what is booted, once, in a cache (`cache`): the kernel and a read-only root file
//!   system from Debian's packages, and an initial RAM disk with `agent`, which runs the scripts.
//! - `qemu` is the process, `qmp` its control socket (disks, `moves`), `port` the line to the agent (scripts, `wire` is its protocol).
//!
//! Invariants:
//!
//! (1) When a scenario has ended, its disks are out of the guest and its files hold all that was written to them.
//! (2) A guest that cannot be brought back to the state it booted in is thrown away; the next scenario boots another.
//! (3) No guest outlives the process that started it, however that ends.
#![forbid(unsafe_code)]

mod cache;
mod error;
mod guest;
pub mod held;
mod initrd;
mod moves;
mod packages;
pub mod pattern;
mod port;
mod programs;
mod qemu;
mod qmp;
mod scenario;
mod shared;
mod system;
mod wire;

pub use error::GuestError;
pub use guest::{Guest, VhostDisk};
pub use scenario::{Disk, Output, Scenario, create_disk};
pub use shared::Shared;

/// Makes what a guest boots from, where that is not there yet, and says where it is. The first time needs the network.
///
/// # Errors
/// A program of the host is missing or fails, or the cache cannot be written.
pub fn prepare() -> Result<std::path::PathBuf, GuestError> {
    let cache = cache::Cache::open()?;
    cache.boot_files()?;
    Ok(cache.folder().to_owned())
}

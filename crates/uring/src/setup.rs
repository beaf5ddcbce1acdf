//! Making a ring with the best flags that the kernel takes, and saying clearly why there is none.

use std::io;

use blockwork_engine::Nanos;
use io_uring::{IoUring, Probe, opcode};

/// How large the queues are, and which features to use.
#[derive(Clone, Copy, Debug)]
pub struct UringConfig {
    /// Entries of the submission queue: operations started between two system calls. More than that cost one more.
    pub submissions: u32,
    /// Entries of the completion queue. More completions than that are kept by the kernel, at a price.
    pub completions: u32,
    /// How long [`Wait::Soon`](blockwork_engine::Wait::Soon) looks before it sleeps; 0: nothing is ever looked for, nor the end of a sleep.
    pub look: Nanos,
    /// Whether to use a ring.
    pub io: Io,
    /// What a sleep ends with, where a device answers many requests at a time.
    pub wakes_with: WakesWith,
    /// Leave out features that older kernels have not; for tests, and to find out whether one of them is at fault.
    pub as_kernel: AsKernel,
}

/// About what leaving and waking an idle virtual processor takes, so that looking in vain costs no more than the sleep that it
/// would have saved.
const LOOK_DEFAULT: Nanos = Nanos::micros(60);

impl Default for UringConfig {
    fn default() -> UringConfig {
        UringConfig {
            submissions: 512,
            completions: 4096,
            look: LOOK_DEFAULT,
            io: Io::Auto,
            wakes_with: WakesWith::First,
            as_kernel: AsKernel::Newest,
        }
    }
}

/// Who does the I/O.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Io {
    /// The ring, where there is one; else threads, with a warning that says why.
    #[default]
    Auto,
    /// The ring, or nobody.
    Uring,
    /// Threads, even where there is a ring.
    Threads,
}

impl Io {
    /// Its name on command lines and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Io::Auto => "auto",
            Io::Uring => "io_uring",
            Io::Threads => "threads",
        }
    }
}

/// Of completions that a device makes at a time, which a sleep for one ends with.
///
/// Measured with a virtual disk that answers 32 requests by one interrupt, at depth 32: NBD gets 7 % less through with all of them, since
/// its client works on the first answer while we work on the others. A guest's ring gets as much through either way, but with all that takes
/// two calls of the kernel for the 32, with the first one and then the others three.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WakesWith {
    /// The first one, since Linux 6.13 (its commit f46b9cdb22f7); the others come with the next call of the kernel. Before that: all.
    #[default]
    First,
    /// All that are there.
    All,
}

/// Which kernel's features to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AsKernel {
    /// All that are there.
    Newest,
    /// Those of Linux 5.11: no setup flags, no multishot operations, no registered ring or buffers, no commands for block
    /// devices.
    V5_11,
}

/// Why there is no ring.
#[derive(Debug, thiserror::Error)]
pub enum UringError {
    /// The kernel has no io_uring at all.
    #[error(
        "this kernel has no io_uring ({call}: ENOSYS): use Linux 5.11 or later, built with CONFIG_IO_URING; \
         in a container or sandbox, its seccomp profile may hide the call: allow io_uring_setup, io_uring_enter and \
         io_uring_register"
    )]
    Missing {
        /// The one of io_uring's three calls that is not there.
        call: &'static str,
    },
    /// It is there, but not for us.
    #[error("io_uring is forbidden here ({call}: EPERM): {remedy}")]
    Forbidden {
        /// The one of io_uring's three calls that is refused.
        call: &'static str,
        /// Who forbids it, as far as can be told, and what to change.
        remedy: String,
    },
    /// Too old.
    #[error("this kernel's io_uring lacks {what}: use Linux 5.11 or later (running: {release})")]
    TooOld {
        /// What is missing.
        what: &'static str,
        /// `uname -r`.
        release: String,
    },
    /// Not enough memory, or not enough that may be locked.
    #[error(
        "no memory for io_uring's queues (io_uring_setup: ENOMEM): they count against the limit of locked memory, which all processes of a \
         user share, before Linux 5.12 and again in newer ones (6.18): raise it (ulimit -l, or LimitMEMLOCK= of the systemd unit)"
    )]
    NoMemory,
    /// Something else.
    #[error("{what}: {source}")]
    Other {
        /// The call.
        what: &'static str,
        /// Its error.
        source: io::Error,
    },
}

impl UringError {
    /// Whether there is no ring for us, which threads can stand in for. A want of memory may come to only some of a process's workers, and to the
    /// last one, which has arrays record that they are clean.
    pub(crate) fn is_want_of_ring(&self) -> bool {
        matches!(
            self,
            UringError::Missing { .. }
                | UringError::Forbidden { .. }
                | UringError::TooOld { .. }
                | UringError::NoMemory
        )
    }
}

/// What the running kernel can do beyond the minimum.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Features {
    /// Multishot accept and poll. An accept that is refused is started again after each client.
    pub multishot: bool,
    /// io_uring_enter with the index of a registered ring.
    pub registered_ring: bool,
    /// Sends go on after a short transfer by themselves (MSG_WAITALL, 5.19; older kernels ignore it). If not, we do it.
    pub whole_sends: bool,
    /// Operations that complete only if they fail (5.17), and are cancelled all by one name (5.19).
    pub silent: bool,
    /// Commands for block devices (URING_CMD). One that is refused goes to a thread (`blocking`).
    pub block_commands: bool,
    /// Registered buffers, one at a time (5.19). Where that is refused, operations go without.
    pub known_memory: bool,
}

impl Features {
    /// Those of the plainest ring that we know how to use.
    pub(crate) const NONE: Features = Features {
        multishot: false,
        registered_ring: false,
        whole_sends: false,
        silent: false,
        block_commands: false,
        known_memory: false,
    };
}

pub(crate) fn make(config: &UringConfig) -> Result<(IoUring, Features), UringError> {
    let ring = with_best_flags(config)?;
    let newest = config.as_kernel == AsKernel::Newest;
    let mut probe = Probe::new();
    let registered = ring.submitter().register_probe(&mut probe);
    registered.map_err(|source| explain("io_uring_register", source))?;
    // It has nothing to submit; but a sandbox that refuses the call is better met here than with I/O under way.
    ring.submitter().submit().map_err(|source| explain("io_uring_enter", source))?;
    let too_old = |what| UringError::TooOld { what, release: release() };
    let needed = [
        (ring.params().is_feature_ext_arg(), "waiting with a timeout (IORING_FEAT_EXT_ARG)"),
        (ring.params().is_feature_nodrop(), "completions that are never dropped (IORING_FEAT_NODROP)"),
        (ring.params().is_feature_submit_stable(), "stable submissions (IORING_FEAT_SUBMIT_STABLE)"),
        (probe.is_supported(opcode::Read::CODE), "IORING_OP_READ"),
        (probe.is_supported(opcode::Send::CODE), "IORING_OP_SEND"),
        (probe.is_supported(opcode::Fallocate::CODE), "IORING_OP_FALLOCATE"),
    ];
    if let Some((_, what)) = needed.into_iter().find(|(there, _)| !there) {
        return Err(too_old(what));
    }
    let features = Features {
        multishot: newest,
        registered_ring: newest,
        whole_sends: newest,
        // Sockets are as old as that way to cancel, which has no flag of its own.
        silent: newest
            && ring.params().is_feature_skip_cqe_on_success()
            && probe.is_supported(opcode::Socket::CODE),
        block_commands: newest && probe.is_supported(opcode::UringCmd16::CODE),
        known_memory: newest,
    };
    Ok((ring, features))
}

/// Tries the setups from the newest kernel's to the oldest's; the kernel refuses flags that it does not know by EINVAL.
fn with_best_flags(config: &UringConfig) -> Result<IoUring, UringError> {
    let oldest = 3;
    let first = if config.as_kernel == AsKernel::Newest { 0 } else { oldest };
    let mut refused = None;
    for level in first..=oldest {
        let mut builder = IoUring::builder();
        builder.dontfork().setup_clamp().setup_cqsize(config.completions);
        if level <= 2 {
            // 5.19. Completions wait until the worker enters the kernel instead of interrupting it, and a flag in
            // memory tells that they do: polling costs no system call when there is nothing.
            builder.setup_submit_all().setup_coop_taskrun().setup_taskrun_flag();
        }
        if level <= 1 {
            // 6.1. Only this thread submits.
            builder.setup_single_issuer();
            if config.wakes_with == WakesWith::First {
                // Completions are worked off in its io_uring_enter alone, and no more of them than it waits for. Implies COOP_TASKRUN.
                builder.setup_defer_taskrun();
            }
        }
        if level == 0 {
            builder.setup_no_sqarray(); // 6.6
        }
        match builder.build(config.submissions) {
            Ok(ring) => return Ok(ring),
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => refused = Some(error),
            Err(error) => return Err(explain_setup(error)),
        }
    }
    Err(explain_setup(refused.expect("at least one setup was tried")))
}

fn explain_setup(source: io::Error) -> UringError {
    match source.raw_os_error() {
        Some(libc::ENOMEM) => UringError::NoMemory,
        Some(libc::EINVAL) => UringError::TooOld { what: "the plainest setup", release: release() },
        _ => explain("io_uring_setup", source),
    }
}

fn explain(call: &'static str, source: io::Error) -> UringError {
    match source.raw_os_error() {
        Some(libc::ENOSYS) => UringError::Missing { call },
        Some(libc::EPERM | libc::EACCES) => UringError::Forbidden { call, remedy: who_forbids() },
        _ => UringError::Other { what: call, source },
    }
}

fn who_forbids() -> String {
    let sysctl = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled").unwrap_or_default();
    remedy_for(sysctl.trim())
}

/// The remedy, given the value of the sysctl kernel.io_uring_disabled (empty where it does not exist).
fn remedy_for(sysctl: &str) -> String {
    match sysctl {
        "2" => "the sysctl kernel.io_uring_disabled is 2, off for everybody: set it to 0 (sysctl -w \
                kernel.io_uring_disabled=0)"
            .into(),
        "1" => "the sysctl kernel.io_uring_disabled is 1, off but for CAP_SYS_ADMIN and the group in \
                kernel.io_uring_group: set it to 0, or put this user's group there"
            .into(),
        _ => "probably by the seccomp profile of a container or sandbox (Docker's and containerd's default ones do \
              it): run with a profile that allows io_uring_setup, io_uring_enter and io_uring_register"
            .into(),
    }
}

fn release() -> String {
    rustix::system::uname().release().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_the_sysctl_or_the_sandbox() {
        assert!(remedy_for("2").contains("io_uring_disabled=0"));
        assert!(remedy_for("1").contains("io_uring_group"));
        assert!(remedy_for("0").contains("seccomp"));
        assert!(remedy_for("").contains("seccomp"));
        let refused = |errno| explain_setup(io::Error::from_raw_os_error(errno));
        let error = refused(libc::EPERM).to_string();
        assert!(error.contains("EPERM"), "{error}");
        assert!(refused(libc::ENOSYS).to_string().contains("5.11"));
    }

    #[test]
    fn threads_stand_in_for_no_ring_for_one_that_is_forbidden_and_for_want_of_memory() {
        let stands_in = |errno| explain_setup(io::Error::from_raw_os_error(errno)).is_want_of_ring();
        for errno in [libc::EPERM, libc::EACCES, libc::ENOSYS, libc::EINVAL, libc::ENOMEM] {
            assert!(stands_in(errno), "{errno}");
        }
        assert!(!stands_in(libc::EMFILE));
    }

    #[test]
    fn both_the_newest_and_the_plainest_setup_work_here() {
        make(&UringConfig::default()).unwrap();
        make(&UringConfig { as_kernel: AsKernel::V5_11, ..UringConfig::default() }).unwrap();
    }
}

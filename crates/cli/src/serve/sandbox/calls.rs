//! System calls that a server never makes, refused by seccomp: EPERM, as from a kernel that does not let this user.
//!
//! A list of what is refused, not of what is allowed: a C library or a kernel that makes a new call for an old purpose must not end a server that
//! has disks open, and the files are Landlock's to guard. What io_uring does for us is not looked at by seccomp; of
//! these it has operations only for extended attributes.
//!
//! It costs nothing where it matters: of calls that are allowed whatever their arguments are, the kernel remembers that (Linux 5.11), and does not
//! run the filter.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use rustix::io::Errno;
use seccompiler::{
    SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule, apply_filter,
};

/// Never made, by what they are for.
const REFUSED: &[i64] = &[
    // Other programs.
    libc::SYS_execve,
    libc::SYS_execveat,
    // Other processes: their memory, descriptors and secrets.
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    libc::SYS_move_pages,
    libc::SYS_migrate_pages,
    // What is mounted where.
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_open_tree,
    libc::SYS_move_mount,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_fanotify_init,
    libc::SYS_open_by_handle_at,
    // Another user, other rights, other namespaces.
    libc::SYS_setuid,
    libc::SYS_setgid,
    libc::SYS_setreuid,
    libc::SYS_setregid,
    libc::SYS_setresuid,
    libc::SYS_setresgid,
    libc::SYS_setfsuid,
    libc::SYS_setfsgid,
    libc::SYS_setgroups,
    libc::SYS_capset,
    libc::SYS_setns,
    libc::SYS_unshare,
    libc::SYS_personality,
    // Rights of files, by which another program would have more.
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_fsetxattr,
    libc::SYS_removexattr,
    libc::SYS_lremovexattr,
    libc::SYS_fremovexattr,
    libc::SYS_mknodat,
    // The kernel itself.
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_reboot,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    libc::SYS_syslog,
    libc::SYS_acct,
    libc::SYS_lookup_dcookie,
    libc::SYS_nfsservctl,
    libc::SYS_vhangup,
    // The machine's clock and name.
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
];

/// The same, of those that only this machine's kind has.
#[cfg(target_arch = "x86_64")]
const REFUSED_HERE: &[i64] = &[
    libc::SYS_chown,
    libc::SYS_lchown,
    libc::SYS_mknod,
    libc::SYS_iopl,
    libc::SYS_ioperm,
    libc::SYS_modify_ldt,
    libc::SYS_uselib,
];
#[cfg(not(target_arch = "x86_64"))]
const REFUSED_HERE: &[i64] = &[];

/// Namespaces that a new process may have of its own: CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID and NEWNET.
const NAMESPACES: [u64; 7] = [1 << 17, 1 << 25, 1 << 26, 1 << 27, 1 << 28, 1 << 29, 1 << 30];

/// Refuses them from now on, to this thread and all that it starts. Sets `no_new_privs`, where Landlock has not.
pub(super) fn refuse() -> Result<()> {
    let all = REFUSED.iter().chain(REFUSED_HERE).flat_map(|call| spellings(*call)).chain(of_x32());
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = all.map(|call| (call, Vec::new())).collect();
    let with = |flag: u64| {
        let is_set = SeccompCmpOp::MaskedEq(flag);
        let flags = SeccompCondition::new(0, SeccompCmpArgLen::Qword, is_set, flag)?;
        SeccompRule::new(vec![flags])
    };
    for call in spellings(libc::SYS_clone) {
        rules.insert(call, NAMESPACES.into_iter().map(with).collect::<Result<_, _>>()?);
    }
    apply(rules, Errno::PERM)?;
    // Its flags are in memory, where seccomp cannot see them. The C library makes do with clone, where a kernel has not got this one.
    apply(spellings(libc::SYS_clone3).map(|call| (call, Vec::new())).collect(), Errno::NOSYS)
}

fn apply(rules: BTreeMap<i64, Vec<SeccompRule>>, errno: Errno) -> Result<()> {
    let errno = SeccompAction::Errno(errno.raw_os_error().unsigned_abs());
    let machine = std::env::consts::ARCH.try_into()?;
    // Calls of another kind of machine, as of 32-bit programs, end the process: seccompiler's filters begin with that.
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, errno, machine)?;
    let program: seccompiler::BpfProgram = filter.try_into()?;
    apply_filter(&program).context("the kernel did not take the filter")
}

/// A call as x86-64 has it, and as x32 has, which is another number for the same.
#[cfg(target_arch = "x86_64")]
fn spellings(call: i64) -> impl Iterator<Item = i64> {
    [call, call | X32].into_iter()
}

#[cfg(not(target_arch = "x86_64"))]
fn spellings(call: i64) -> impl Iterator<Item = i64> {
    std::iter::once(call)
}

/// The bit of the calls of x32.
#[cfg(target_arch = "x86_64")]
const X32: i64 = 1 << 30;

/// Calls that x32 has beside those: execve, ptrace and others whose arguments have another layout there.
#[cfg(target_arch = "x86_64")]
fn of_x32() -> impl Iterator<Item = i64> {
    (512..=547).map(|call| call | X32)
}

#[cfg(not(target_arch = "x86_64"))]
fn of_x32() -> impl Iterator<Item = i64> {
    std::iter::empty()
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::thread;

    use rustix::thread::UnshareFlags;

    use super::*;

    #[test]
    fn who_has_given_them_up_runs_no_program_mounts_nothing_and_still_has_threads() {
        // A filter is its thread's, and of those that it starts.
        let refused = thread::spawn(|| {
            refuse().expect("the kernel has seccomp");
            let program = Command::new("true").status().map_err(|error| error.raw_os_error());
            assert_eq!(program.map(|_| ()), Err(Some(Errno::PERM.raw_os_error())));
            assert_eq!(rustix::process::chroot("/"), Err(Errno::PERM));
            assert_eq!(
                rustix::mount::unmount("/nowhere", rustix::mount::UnmountFlags::empty()),
                Err(Errno::PERM)
            );
            #[allow(deprecated, reason = "the one that is not asks for unsafe")]
            let unshared = rustix::thread::unshare(UnshareFlags::NEWUTS);
            assert_eq!(unshared, Err(Errno::PERM));
            thread::spawn(|| rustix::process::chroot("/")).join().expect("there are threads")
        });
        assert_eq!(refused.join().expect("no panic"), Err(Errno::PERM));
        let status = Command::new("true").status().expect("elsewhere there are programs");
        assert!(status.success());
    }
}

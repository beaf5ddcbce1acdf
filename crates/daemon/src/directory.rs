//! Where servers' sockets are: one folder for each user, `PID.sock` for each server.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use blockwork_format::escape;

/// Environment variable that names another folder.
const VARIABLE: &str = "BLOCKWORK_RUN_DIR";

/// Why the folder of sockets cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// It cannot be made or looked at.
    #[error("{folder}: the folder for control sockets: {source}; set {VARIABLE} to a folder of yours")]
    Unusable {
        /// The folder, escaped.
        folder: String,
        /// What the system said.
        source: io::Error,
    },
    /// Somebody else could put a socket there.
    #[error(
        "{folder}: the folder for control sockets: {found}, expected a folder of user {uid} that nobody else can \
         write to; remove it, or set {VARIABLE} to a folder of yours"
    )]
    Unsafe {
        /// The folder, escaped.
        folder: String,
        /// What it is.
        found: String,
        /// Whose it should be.
        uid: u32,
    },
}

/// The folder for control sockets: `$BLOCKWORK_RUN_DIR`; else `/run/blockwork` for root, `$XDG_RUNTIME_DIR/blockwork` for
/// others, and `/tmp/blockwork-UID` where that is not set. It need not exist.
pub fn control_dir() -> PathBuf {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let uid = uid();
    if let Some(folder) = variable(VARIABLE) {
        return folder;
    }
    match variable("XDG_RUNTIME_DIR") {
        _ if uid == 0 => PathBuf::from("/run/blockwork"),
        Some(folder) => folder.join("blockwork"),
        None => PathBuf::from(format!("/tmp/blockwork-{uid}")),
    }
}

/// The path for this process's socket in [`control_dir`], which is made if it is not there.
///
/// # Errors
///
/// The folder cannot be made, or somebody else could put a socket there.
pub fn socket_path() -> Result<PathBuf, DirectoryError> {
    socket_path_in(&control_dir())
}

fn socket_path_in(folder: &Path) -> Result<PathBuf, DirectoryError> {
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(unusable(folder, error)),
        _ => {}
    }
    check(folder)?;
    Ok(folder.join(format!("{}.sock", std::process::id())))
}

/// Refuses a folder that is not ours, or that others can write to. A symbolic link is not followed: in `/tmp` anybody
/// could have made it.
pub(crate) fn check(folder: &Path) -> Result<(), DirectoryError> {
    let found = fs::symlink_metadata(folder).map_err(|error| unusable(folder, error))?;
    let uid = uid();
    let wrong = if !found.is_dir() {
        "it is no folder".to_owned()
    } else if found.uid() != uid {
        format!("it belongs to user {}", found.uid())
    } else if found.mode() & 0o022 != 0 {
        format!("its mode is {:o}", found.mode() & 0o7777)
    } else {
        return Ok(());
    };
    Err(DirectoryError::Unsafe { folder: shown(folder), found: wrong, uid })
}

/// The process whose socket that would be.
pub(crate) fn pid_of(socket: &Path) -> Option<u32> {
    let name = socket.file_name()?.to_str()?;
    let digits = name.strip_suffix(".sock")?;
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    digits.parse().ok().filter(|pid| *pid > 0)
}

/// Whether no process has that number.
pub(crate) fn is_dead(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
    pid.is_none_or(|pid| rustix::process::test_kill_process(pid) == Err(rustix::io::Errno::SRCH))
}

/// Whether a process is stopped, by SIGSTOP or a debugger: it does nothing until somebody has it go on.
pub(crate) fn is_stopped(pid: u32) -> bool {
    // Its name, in brackets, may hold anything: what follows the last one is its state.
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(['T', 't']))
}

/// A path for an error's text.
pub(crate) fn shown(path: &Path) -> String {
    escape(&path.to_string_lossy())
}

fn unusable(folder: &Path, source: io::Error) -> DirectoryError {
    DirectoryError::Unusable { folder: shown(folder), source }
}

fn uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn a_folder_that_others_can_write_to_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        check(folder.path()).unwrap();
        for mode in [0o770, 0o707, 0o1777] {
            fs::set_permissions(folder.path(), fs::Permissions::from_mode(mode)).unwrap();
            let error = check(folder.path()).unwrap_err().to_string();
            assert!(error.contains(&format!("its mode is {mode:o}")), "{error}");
        }
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        check(folder.path()).unwrap();
    }

    #[test]
    fn the_folder_is_made_for_us_alone_and_found_again() {
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("run");
        let socket = socket_path_in(&folder).unwrap();
        assert_eq!(pid_of(&socket), Some(std::process::id()));
        assert_eq!(fs::metadata(&folder).unwrap().mode() & 0o777, 0o700);
        assert_eq!(socket_path_in(&folder).unwrap(), socket);
        let error = socket_path_in(&parent.path().join("a/b")).unwrap_err().to_string();
        assert!(error.contains("/a/b: ") && error.contains("set BLOCKWORK_RUN_DIR"), "{error}");
    }

    #[test]
    fn a_link_in_place_of_the_folder_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("link");
        symlink(folder.path(), &link).unwrap();
        assert!(check(&link).unwrap_err().to_string().contains("it is no folder"));
    }

    #[test]
    fn only_a_number_names_a_socket() {
        assert_eq!(pid_of(Path::new("/run/x/417.sock")), Some(417));
        for name in ["0.sock", "+1.sock", "-1.sock", "a.sock", "1.sock.2", ".sock", "99999999999.sock"] {
            assert_eq!(pid_of(Path::new(name)), None, "{name}");
        }
    }

    #[test]
    fn this_process_lives_and_a_number_beyond_all_processes_does_not() {
        assert!(!is_dead(std::process::id()));
        assert!(is_dead(u32::MAX));
        assert!(is_dead(i32::MAX.unsigned_abs()));
    }
}

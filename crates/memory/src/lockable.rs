//! How much memory this process may lock. Where there is a limit, it holds for all processes of the user together.

use std::fs;

use rustix::process::{Resource, getrlimit};
use rustix::thread::{CapabilitySet, capabilities};

/// Bytes; none: as much as it likes.
pub fn lockable() -> Option<u64> {
    let is_privileged =
        || capabilities(None).is_ok_and(|may| may.effective.contains(CapabilitySet::IPC_LOCK));
    let users = || fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    getrlimit(Resource::Memlock).current.filter(|_| !(is_privileged() && are_all_users(&users())))
}

/// Whether a map of user numbers is that of the machine itself. Capabilities of a user namespace, which a container without root is, lift no limit of
/// the user who has made it.
fn are_all_users(map: &str) -> bool {
    map.split_whitespace().eq(["0", "0", "4294967295"])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_has_all_users_of_the_machine_is_in_no_namespace() {
        assert!(are_all_users("         0          0 4294967295\n"));
        assert!(!are_all_users("         0       1001          1\n"));
        assert!(!are_all_users("         0     100000      65536\n") && !are_all_users(""));
    }
}

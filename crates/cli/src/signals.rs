//! Signals that ask for the end, as servers and verbs heed them that must leave disks in order.

use std::fs;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// SIGTERM, SIGINT, and SIGHUP (the terminal is gone) unless that is ignored, as nohup(1) has it, which is meant.
pub(crate) fn ending() -> Vec<i32> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let hangup = (!ignored(&status, SIGHUP)).then_some(SIGHUP);
    [SIGTERM, SIGINT].into_iter().chain(hangup).collect()
}

/// Whether a process ignores a signal, by its `/proc/PID/status`: see proc(5), SigIgn.
fn ignored(status: &str, signal: i32) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_that_nohup_has_ignored_is_known_by_its_bit() {
        let status = "SigBlk:\t0000000000000001\nSigIgn:\t0000000000001001\nSigCgt:\t0000000000004002\n";
        assert!(ignored(status, SIGHUP));
        assert!(!ignored(status, SIGINT) && !ignored(status, SIGTERM) && !ignored("", SIGHUP));
        assert_eq!(ending()[..2], [SIGTERM, SIGINT]);
    }
}

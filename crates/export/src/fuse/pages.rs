//! Files of which the kernel may have pages, and what makes it drop them when somebody else has written the volume.
//!
//! Reads and writes go past the page cache (FOPEN_DIRECT_IO), but sendfile(2), splice(2) and mmap(2) do not, and the kernel believes its pages
//! until it has a reason not to. The reason is a time of modification that it has not seen before (FUSE_AUTO_INVAL_DATA): whenever a client looks at
//! the file (stat, or its name), it asks for the attributes, since they are valid for no time; and where the answer has another time, it
//! writes back what is dirty and drops all pages before that client goes on.
//!
//! 1. A file's time is another one than the one before if the volume may have been altered since, by anybody ([`Context::changes`]): by this mount
//!    as well, which costs reading the pages once more and nothing else.
//! 2. Of files that were never read through the page cache, nothing is asked: nothing is counted for them on the way of any write, and
//!    their time stays that of the mount.
//! 3. The kernel keeps the time that SETATTR is answered with, and drops nothing. So that is the one it knows already, and the next time is new.
//!
//! Not FUSE_NOTIFY_INVAL_INODE: it would drop pages without being asked, but whoever writes it to /dev/fuse waits, and cannot be killed, for each page
//! that is being read or written back, thus for the worker; and has the mount's descriptor open meanwhile, so that a server which is killed
//! then neither ends nor lets its clients go. Here it is a client who waits.
//!
//! [`Context::changes`]: blockwork_engine::Context::changes

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// What is known of those files, by their nodes.
#[derive(Debug, Default)]
pub(super) struct Pages {
    files: BTreeMap<u64, Kept>,
}

#[derive(Debug)]
struct Kept {
    /// As it was counted when the kernel was last told a time.
    changes: u64,
    /// That time, since 1970; none: that of the mount.
    told: Option<Duration>,
    /// The kernel may know that time without having dropped its pages.
    is_due: bool,
}

impl Pages {
    /// The kernel is about to read pages of a file, whose volume's changes can be counted so. `exists` says which others there still are.
    #[inline]
    pub(super) fn are_read(
        &mut self,
        node: u64,
        changes: impl FnOnce() -> u64,
        exists: impl Fn(u64) -> bool,
    ) {
        if !self.files.contains_key(&node) {
            self.files.retain(|other, _| exists(*other));
            self.files.insert(node, Kept { changes: changes(), told: None, is_due: false });
        }
    }

    /// When the file was last seen to have been altered, for a client that looks at it now.
    pub(super) fn look(&mut self, node: u64, changes: impl FnOnce() -> u64) -> Option<Duration> {
        let kept = self.files.get_mut(&node)?;
        let changes = changes();
        if changes != kept.changes || kept.is_due {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            // Clocks can be set back, and need not be finer than two looks.
            let least = kept.told.map(|told| told + Duration::from_nanos(1)).unwrap_or_default();
            (kept.changes, kept.told, kept.is_due) = (changes, Some(now.max(least)), false);
        }
        kept.told
    }

    /// What it was then, for a client that sets attributes.
    pub(super) fn set(&mut self, node: u64) -> Option<Duration> {
        let kept = self.files.get_mut(&node)?;
        kept.is_due = true;
        kept.told
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_new_once_for_each_change_that_a_client_can_have_missed() {
        let mut pages = Pages::default();
        assert_eq!((pages.look(2, || unreachable!()), pages.set(2)), (None, None), "it has no pages");
        pages.are_read(2, || 5, |_| true);
        pages.are_read(2, || unreachable!("it is known already"), |_| true);
        assert_eq!(pages.look(2, || 5), None);
        let first = pages.look(2, || 6).unwrap();
        assert_eq!(pages.look(2, || 6), Some(first));
        let second = pages.look(2, || 7).unwrap();
        assert!(second > first);
        assert_eq!(pages.set(2), Some(second), "the kernel takes it without dropping anything");
        assert!(pages.look(2, || 7).unwrap() > second);
        // What is gone is forgotten when another one comes.
        pages.are_read(4, || 0, |node| node != 2);
        assert_eq!(pages.look(2, || unreachable!()), None);
    }

    #[test]
    fn a_clock_that_was_set_back_makes_no_old_time() {
        let mut pages = Pages::default();
        pages.are_read(2, || 0, |_| true);
        let future = Duration::from_secs(1 << 40);
        pages.files.get_mut(&2).unwrap().told = Some(future);
        assert_eq!(pages.look(2, || 1), Some(future + Duration::from_nanos(1)));
    }
}

//! A server that is asked to end, and does not, says what it waits for, and what would end it all the same.
//!
//! Disks and servers of files that do not answer are waited for, however long that takes: what clients were told is done must not be
//! lost for want of patience. Whoever sits before the screen may know better.

use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use blockwork_engine::{Snapshot, Stats};
use blockwork_format::escape;

/// So long nobody wonders.
const FIRST: Duration = Duration::from_secs(5);
/// Then it is said again so often, with what is waited for by then.
const AGAIN: Duration = Duration::from_secs(60);

/// As long as this lives, the server is ending.
pub(super) struct Patience {
    /// The thread ends when this is dropped.
    _ends: Sender<()>,
}

impl Patience {
    pub(super) fn start(stats: Arc<Stats>) -> Patience {
        let (_ends, end) = mpsc::channel::<()>();
        let wait = move || {
            let mut next = FIRST;
            while end.recv_timeout(next) == Err(RecvTimeoutError::Timeout) {
                log::warn!("{}", sentence(&stats.snapshot()));
                next = AGAIN;
            }
        };
        // Without it nothing is said, and nothing else is different.
        if let Err(error) = thread::Builder::new().name("blockwork-ends".into()).spawn(wait) {
            log::debug!("nobody watches how long the end takes: {error}");
        }
        Patience { _ends }
    }
}

/// What is waited for.
fn sentence(snapshots: &[Snapshot]) -> String {
    let of_disk = |snapshot: &Snapshot| {
        let n = snapshot.in_flight().filter(|n| *n > 0)?;
        let requests = if n == 1 { "request" } else { "requests" };
        Some(format!("{n} {requests} to {}", escape(&snapshot.info.name)))
    };
    let disks: Vec<_> = snapshots.iter().filter_map(of_disk).collect();
    let what =
        if disks.is_empty() { "what clients and layers have under way".into() } else { disks.join(", ") };
    format!(
        "the end waits for {what}; another SIGINT (^C) or SIGTERM ends the server at once, and what was written since the last \
         flush may be lost"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use blockwork_engine::{Counter, Nanos, NodeId, NodeInfo, NodeKind, Op};

    #[test]
    fn disks_that_have_not_answered_are_named() {
        let info = |name: &str, kind| NodeInfo { name: name.to_owned(), kind, device: (0, 0) };
        let stats = Stats::new(vec![
            info("dm/a", NodeKind::Linear),
            info("disk/a", NodeKind::Leaf),
            info("disk/b", NodeKind::Leaf),
            info("disk/c", NodeKind::Leaf),
        ]);
        let worker = stats.worker();
        (0..4).for_each(|node| worker.add(NodeId(node), Counter::Out, 3));
        (0..2).for_each(|_| worker.latency(NodeId(1), Op::Read, Nanos(1)));
        worker.latency(NodeId(2), Op::Write, Nanos(1));
        worker.add(NodeId(2), Counter::Incomplete, 2);
        let said = sentence(&stats.snapshot());
        assert!(
            said.starts_with("the end waits for 1 request to disk/a, 3 requests to disk/c; another"),
            "{said}"
        );
        assert!(sentence(&[]).contains("what clients and layers have under way"));
    }
}

//! How far a resync, recovery, check, repair or merge is: a line as in `/proc/mdstat`, drawn over and over on a terminal.

use std::io::{IsTerminal, Write};

use blockwork_daemon::SyncStatus;

use crate::out;

/// Characters of the bar.
const WIDTH: usize = 20;

/// The line on standard error, which is left alone where that is no terminal.
#[derive(Default)]
pub(crate) struct Progress {
    action: Option<String>,
    is_drawn: bool,
}

impl Progress {
    /// Draws it.
    pub(crate) fn show(&mut self, sync: &SyncStatus) {
        if sync.runs() {
            self.action = Some(sync.action.clone());
        }
        let mut out = std::io::stderr().lock();
        if sync.runs() && out.is_terminal() {
            // Of what does not help the person who waits, nothing is said: that it cannot be drawn.
            let _ = write!(out, "\r\u{1b}[K{}", bar(sync)).and_then(|()| out.flush());
            self.is_drawn = true;
        }
    }

    /// What was last seen to run.
    pub(super) fn last_action(&self) -> Option<&str> {
        self.action.as_deref()
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.is_drawn {
            out::tell("\n");
        }
    }
}

/// `[==>.................]  recovery = 12.6% (37043392/292945152) finish=127.5min speed=33440K/sec`
pub(super) fn bar(sync: &SyncStatus) -> String {
    let share = sync.share().clamp(0.0, 1.0);
    let full = ((share * WIDTH as f64) as usize).min(WIDTH);
    let head = if full < WIDTH { ">" } else { "" };
    let (done, total) = (sync.done_sectors / 2, sync.total_sectors / 2);
    let finish = match sync.speed_kib {
        0 => "?".to_owned(),
        speed => format!("{:.1}min", total.saturating_sub(done) as f64 / speed as f64 / 60.0),
    };
    format!(
        "[{}{head}{}]  {} = {:.1}% ({done}/{total}) finish={finish} speed={}K/sec",
        "=".repeat(full),
        ".".repeat(WIDTH.saturating_sub(full + head.len())),
        word(&sync.action),
        share * 100.0,
        sync.speed_kib
    )
}

/// As mdstat has it: a noun, where sysfs has a verb.
fn word(action: &str) -> &str {
    if action == "recover" { "recovery" } else { action }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_reads_as_in_mdstat() {
        let sync = |done, total, speed| SyncStatus {
            action: "recover".into(),
            done_sectors: done,
            total_sectors: total,
            speed_kib: speed,
            mismatch_sectors: 0,
        };
        assert_eq!(
            bar(&sync(1 << 20, 4 << 20, 1 << 14)),
            "[=====>..............]  recovery = 25.0% (524288/2097152) finish=1.6min speed=16384K/sec"
        );
        assert_eq!(
            bar(&sync(0, 0, 0)),
            "[>...................]  recovery = 0.0% (0/0) finish=? speed=0K/sec"
        );
        assert!(bar(&sync(8, 8, 1)).starts_with("[====================]  recovery = 100.0%"));
    }
}

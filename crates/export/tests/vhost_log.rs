//! What a socket's front ends may have written into the log: it is this process's only one, so this is a process of its own.

mod vhost_support;

use std::sync::atomic::{AtomicUsize, Ordering};

use log::{LevelFilter, Log, Metadata, Record};
use vhost_support::Rig;
use vhostload::Client;

/// Lines so far, of those that people see.
static LINES: AtomicUsize = AtomicUsize::new(0);

struct Count;

impl Log for Count {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, _: &Record<'_>) {
        LINES.fetch_add(1, Ordering::Relaxed);
    }

    fn flush(&self) {}
}

#[test]
fn who_sends_what_is_no_message_again_and_again_does_not_fill_the_log() {
    log::set_logger(&Count).unwrap();
    log::set_max_level(LevelFilter::Info);
    let rig = Rig::new("memory:16M", 1);
    let begun = std::time::Instant::now();
    for _ in 0..500 {
        let client = Client::connect(&rig.socket()).unwrap();
        client.send_raw(b"GET / HTTP/1.1\r\n\r\n", &[]).unwrap();
        assert!(client.is_closed());
    }
    rig.stop();
    // Of four kinds of lines, one each in ten seconds; and few others.
    let most = 10 + 4 * (begun.elapsed().as_secs() as usize / 10);
    let lines = LINES.load(Ordering::Relaxed);
    assert!((1..=most).contains(&lines), "{lines} lines, expected 1 to {most}");
}

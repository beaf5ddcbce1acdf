//! What clients of NBD's and users of a FUSE file may have written into the log: it is this process's only one, so this is a process of its
//! own. (Front ends of vhost-user: `vhost_log`.)
//!
//! Needs root and /dev/fuse.

mod fuse_support;
mod nbd_support;
mod tap;

use std::fs::File;
use std::io::ErrorKind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use log::{LevelFilter, Log, Metadata, Record};
use nbd_support::{Raw, Rig};

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

/// Has somebody do something again and again, which is worth a line: one in ten seconds is written, and few others.
fn costs_few_lines(mut act: impl FnMut()) {
    let (before, begun) = (LINES.load(Ordering::Relaxed), Instant::now());
    (0..500).for_each(|_| act());
    let most = 5 + begun.elapsed().as_secs() as usize / 10;
    let lines = LINES.load(Ordering::Relaxed) - before;
    assert!((1..=most).contains(&lines), "{lines} lines, expected 1 to {most}");
}

#[test]
fn who_is_let_go_or_refused_again_and_again_does_not_fill_the_log() {
    log::set_logger(&Count).unwrap();
    log::set_max_level(LevelFilter::Info);
    let rig = Rig::new(&[nbd_support::Disk::new("d", "memory:16M")]);
    costs_few_lines(|| {
        let mut client = Raw::connect(&rig);
        client.write(b"GET / HTTP/1.1\r\n\r\n");
        assert!(client.is_closed());
    });
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mnt");
    let disk = fuse_support::Disk::sparse(folder.path(), "a", 1 << 20);
    let server = fuse_support::Server::start(&path, &[disk]);
    costs_few_lines(|| assert_eq!(File::create(&path).unwrap_err().kind(), ErrorKind::PermissionDenied));
    server.stop().unwrap();
}

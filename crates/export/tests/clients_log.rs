//! What clients of NBD's and users of a FUSE file may have written into the log: it is this process's only one, so this is a process of its
//! own. (Front ends of vhost-user: `vhost_log`.)
//!
//! Needs root and /dev/fuse.

mod fuse_support;
mod lines;
mod nbd_support;
mod tap;

use std::fs::File;
use std::io::ErrorKind;
use std::time::Instant;

use nbd_support::{Raw, Rig};

/// Has somebody do something again and again, which is worth a line: one in ten seconds is written, and few others.
fn costs_few_lines(mut act: impl FnMut()) {
    let (before, begun) = (lines::so_far(), Instant::now());
    (0..500).for_each(|_| act());
    let most = 5 + begun.elapsed().as_secs() as usize / 10;
    let lines = lines::so_far() - before;
    assert!((1..=most).contains(&lines), "{lines} lines, expected 1 to {most}");
}

#[test]
fn who_is_let_go_or_refused_again_and_again_does_not_fill_the_log() {
    lines::count();
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

//! BLKDISCARD and BLKZEROOUT, as commands in the ring and by threads, on a loop device. Needs root.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::process::Command;

use blockwork_engine::{Completion, Env, FileId, FileOp, FileOpKind, Nanos, Token, Wait};
use blockwork_uring::{AsKernel, Uring, UringConfig};

const MIB: u64 = 1 << 20;

/// A loop device over a file full of data.
struct LoopDevice {
    path: String,
    backing: tempfile::NamedTempFile,
}

impl LoopDevice {
    fn new() -> LoopDevice {
        let mut backing = tempfile::NamedTempFile::new().unwrap();
        backing.write_all(&[7; 16 << 20]).unwrap();
        backing.as_file().sync_all().unwrap();
        let output = Command::new("losetup").args(["--show", "--find"]).arg(backing.path()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        LoopDevice { path: String::from_utf8(output.stdout).unwrap().trim().to_owned(), backing }
    }

    fn open(&self) -> File {
        OpenOptions::new().read(true).write(true).open(&self.path).unwrap()
    }

    fn blocks(&self) -> u64 {
        self.backing.as_file().metadata().unwrap().blocks()
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        assert!(Command::new("losetup").args(["--detach", &self.path]).status().unwrap().success());
    }
}

fn start(env: &mut Uring, token: u64, file: &File, kind: FileOpKind, offset: u64, len: u64) {
    let file = FileId(u32::try_from(file.as_raw_fd()).unwrap());
    env.start(Token(token), FileOp { file, kind, offset, len, data: &[], fixed: false });
}

fn complete(env: &mut Uring, n: usize) -> Vec<Completion> {
    let (mut out, deadline) = (Vec::new(), env.now() + Nanos::secs(30));
    while out.len() < n {
        assert!(env.now() < deadline, "{} of {n} completions came", out.len());
        env.wait(Wait::Until(Some(deadline)), &mut out);
    }
    out
}

#[test]
fn discards_free_and_zeroes_zero_by_ring_and_by_threads() {
    for as_kernel in [AsKernel::Newest, AsKernel::V5_11] {
        let device = LoopDevice::new();
        let before = device.blocks();
        let file = device.open();
        let mut env = Uring::new(&UringConfig { as_kernel, ..UringConfig::default() }).unwrap();
        for i in 0..4 {
            start(&mut env, i, &file, FileOpKind::BlkDiscard, i * 2 * MIB, MIB);
        }
        start(&mut env, 4, &file, FileOpKind::BlkZeroOut, 10 * MIB, MIB);
        let mut done = Vec::new();
        env.wait(Wait::Poll, &mut done);
        drop(file); // the operations hold the device themselves, once submitted
        done.extend(complete(&mut env, 5 - done.len()));
        let mut tokens: Vec<u64> = done
            .into_iter()
            .map(|done| {
                assert_eq!(done.result, 0, "{done:?}");
                done.token.0
            })
            .collect();
        tokens.sort_unstable();
        assert_eq!(tokens, [0, 1, 2, 3, 4]);
        // The file system may need a block to write down where the holes are.
        let freed = before - device.blocks();
        assert!((4 * MIB / 512 - 64..=4 * MIB / 512).contains(&freed), "{as_kernel:?}: {freed}");
        let content = std::fs::read(&device.path).unwrap();
        for (i, piece) in content.chunks(1 << 20).enumerate() {
            let expected = if [0, 2, 4, 6, 10].contains(&i) { 0 } else { 7 };
            assert!(piece.iter().all(|byte| *byte == expected), "MiB {i}");
        }
    }
}

#[test]
fn a_range_that_the_device_refuses_is_an_error() {
    for as_kernel in [AsKernel::Newest, AsKernel::V5_11] {
        let device = LoopDevice::new();
        let file = device.open();
        let mut env = Uring::new(&UringConfig { as_kernel, ..UringConfig::default() }).unwrap();
        for kind in [FileOpKind::BlkDiscard, FileOpKind::BlkZeroOut] {
            start(&mut env, 1, &file, kind, 100, 512);
            assert_eq!(complete(&mut env, 1)[0].result, -libc::EINVAL, "{kind:?}");
        }
        let read_only = File::open(&device.path).unwrap();
        start(&mut env, 2, &read_only, FileOpKind::BlkDiscard, 0, MIB);
        assert_eq!(complete(&mut env, 1)[0].result, -libc::EBADF);
    }
}

//! What the leaf tests share: doing one I/O on a leaf at a time, and loop devices.
#![allow(dead_code, reason = "each test file uses some of it")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use blockwork_engine::{
    Completion, Env, Errno, Flags, Leaf, LeafIo, LeafSource, Nanos, Op, Sector, Sectors, Submitted, Token,
    Wait,
};
use blockwork_memory::{Buffer, Segment, bytes_in};
use blockwork_uring::{Uring, UringConfig};
use rustix::mount::{UnmountFlags, unmount};

/// A leaf, and an environment to use it in.
pub struct Lab {
    pub env: Uring,
    pub leaf: Box<dyn Leaf>,
    /// What the leaf is told about other requests.
    pub alone: bool,
    /// Whether memory that the kernel knows is to be used.
    pub fixed: bool,
}

impl Lab {
    pub fn new(source: &dyn LeafSource) -> Lab {
        Lab {
            env: Uring::new(&UringConfig::default()).unwrap(),
            leaf: source.open(),
            alone: true,
            fixed: false,
        }
    }

    /// Does one I/O; returns bytes transferred, or 0 where the leaf did it at once.
    pub fn run(
        &mut self,
        op: Op,
        flags: Flags,
        sector: u64,
        nr: u64,
        data: &[Segment],
    ) -> Result<u32, Errno> {
        let (sector, nr) = (Sector(sector), Sectors(nr));
        let io =
            LeafIo { token: Token(1), op, flags, sector, nr, data, fixed: self.fixed, alone: self.alone };
        match self.leaf.submit(&mut self.env, io) {
            Submitted::Now(result) => result.map(|()| 0),
            Submitted::Started => {
                let (mut out, deadline) = (Vec::<Completion>::new(), self.env.now() + Nanos::secs(30));
                while out.is_empty() {
                    assert!(self.env.now() < deadline, "{op:?} does not complete");
                    self.env.wait(Wait::Until(Some(deadline)), &mut out);
                }
                assert_eq!(out.len(), 1);
                out[0].outcome()
            }
        }
    }

    pub fn write(&mut self, flags: Flags, sector: u64, bytes: &[u8]) {
        let segment = Segment::new(Buffer::new(bytes.len()), 0, bytes.len());
        segment.write_at(0, bytes);
        let done = self.run(Op::Write, flags, sector, bytes.len() as u64 / 512, &[segment]).unwrap();
        assert!(done == 0 || done as usize == bytes.len());
    }

    pub fn read(&mut self, sector: u64, nr: u64) -> Vec<u8> {
        let len = usize::try_from(nr * 512).unwrap();
        let segment = Segment::new(Buffer::new(len), 0, len);
        segment.fill(0xee);
        let done = self.run(Op::Read, Flags::NONE, sector, nr, std::slice::from_ref(&segment)).unwrap();
        assert!(done == 0 || done as usize == bytes_in(std::slice::from_ref(&segment)));
        let mut bytes = vec![0; len];
        segment.read_at(0, &mut bytes);
        bytes
    }
}

/// Bytes that differ from sector to sector.
pub fn pattern(sectors: usize, seed: u8) -> Vec<u8> {
    (0..sectors * 512).map(|i| (i / 512 * 7 + i % 251) as u8 ^ seed).collect()
}

/// Held by each test of a file whose tests start processes, so that they run one at a time: between its fork and its
/// exec, a child has copies of all descriptors, which keep locks held and file systems busy that another test is done with.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a command, which must succeed; gives what it said.
pub fn run(program: &str, arguments: &[&str]) -> String {
    let output =
        Command::new(program).args(arguments).output().unwrap_or_else(|error| panic!("{program}: {error}"));
    let said =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {said}");
    said
}

/// A loop device over a sparse file. Needs root.
pub struct LoopDevice {
    pub path: PathBuf,
    pub backing: tempfile::NamedTempFile,
}

impl LoopDevice {
    pub fn new(bytes: u64, options: &[&str]) -> LoopDevice {
        let backing = tempfile::NamedTempFile::new().unwrap();
        backing.as_file().set_len(bytes).unwrap();
        let file = backing.path().to_str().unwrap();
        let path = run("losetup", &[&["--show", "--find"], options, &[file]].concat());
        LoopDevice { path: PathBuf::from(path.trim()), backing }
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        run("losetup", &["--detach", self.path.to_str().unwrap()]);
    }
}

/// A mount of something, undone at the end. Needs root.
pub struct Mount {
    pub at: tempfile::TempDir,
}

impl Mount {
    pub fn new(arguments: &[&str]) -> Mount {
        let at = tempfile::tempdir().unwrap();
        run("mount", &[arguments, &[at.path().to_str().unwrap()]].concat());
        Mount { at }
    }

    pub fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.at.path().join(name)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // A ring that was closed lets go of its files a moment later.
        let end = Instant::now() + Duration::from_secs(10);
        loop {
            match unmount(self.at.path(), UnmountFlags::empty()) {
                Err(rustix::io::Errno::BUSY) if Instant::now() < end => std::thread::yield_now(),
                ended => return ended.expect("nobody has it open any more"),
            }
        }
    }
}

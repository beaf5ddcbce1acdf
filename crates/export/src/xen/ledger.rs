//! The file of a device's ledgers ([`Ledger`]), one for each of its rings: in a folder of memory (`/run`), which outlives this
//! process, and not this machine.
//!
//! ```text
//!   0      magic (8), version u32, bytes of the text u32 (0: no ledger); from 32: the text
//!   8192   the first ring's records, then the next one's
//! ```
//!
//! The text names the rings: the domain, their grants and event channels. Only who finds the same rings in xenstore may believe the
//! records.
//!
//! Invariants:
//! 1. The text's length is stored after everything else, so that a ledger which has one is whole.
//! 2. All of the file's pages are there before a ring is served by it, so that no request is recorded where there is no room.
//! 3. Who has the file open has it locked, so that a device has one server. What the kernel still does for one that was killed is over
//!    before the next one begins: until then the disks, which are claimed, are not to be had.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use blockwork_format::blkif::{FrontParameters, VirtualDevice};
use blockwork_memory::{Buffer, MapError, Mapping, Place};

use crate::blkif::Ledger;

const MAGIC: &[u8; 8] = b"bwledger";
const VERSION: u32 = 1;
const VERSION_AT: usize = 8;
const LEN_AT: usize = 12;
const TEXT_AT: usize = 32;
/// Where the records begin.
const HEAD_BYTES: usize = 8192;

/// Why there is no ledger.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// The file.
    #[error("{path}: the ledger of the disk's requests: {source}", path = path.display())]
    File {
        /// Its path.
        path: PathBuf,
        /// What the kernel says.
        source: io::Error,
    },
    /// There is no room for it.
    #[error(
        "{path}: the ledger of the disk's requests takes {bytes} bytes, for which there is no room: {source}; make some there, and attach the \
         disk again",
        path = path.display()
    )]
    Full {
        /// Its path.
        path: PathBuf,
        /// How much it takes.
        bytes: u64,
        /// What the kernel says.
        source: io::Error,
    },
    /// It cannot be mapped.
    #[error("{path}: the ledger of the disk's requests: {source}", path = path.display())]
    Map {
        /// Its path.
        path: PathBuf,
        /// Why not.
        source: MapError,
    },
    /// Another process has it.
    #[error("another server has this disk (it holds the lock on {path}); end that first", path = .0.display())]
    InUse(PathBuf),
    /// It is of other rings, or of none.
    #[error(
        "{path} does not say which of the guest's requests are open: {found}, expected {expected:?}",
        path = path.display()
    )]
    OtherRings {
        /// Its path.
        path: PathBuf,
        /// What it says.
        found: String,
        /// What it should.
        expected: String,
    },
    /// More rings than there is room to name.
    #[error("the names of the rings take {0} bytes, expected at most {most}", most = HEAD_BYTES - TEXT_AT)]
    TooMany(usize),
}

/// The file, locked.
#[derive(Debug)]
pub(super) struct LedgerFile {
    path: PathBuf,
    file: File,
}

impl LedgerFile {
    /// Opens that of a device, and locks it.
    pub(super) fn open(folder: &Path, domain: u16, device: VirtualDevice) -> Result<LedgerFile, LedgerError> {
        let path = folder.join(format!("xen-{domain}-{}.ledger", device.number));
        let wrong = |source| LedgerError::File { path: path.clone(), source };
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(wrong)?;
        match file.try_lock() {
            Ok(()) => Ok(LedgerFile { path, file }),
            Err(TryLockError::WouldBlock) => Err(LedgerError::InUse(path)),
            Err(TryLockError::Error(source)) => Err(wrong(source)),
        }
    }

    /// An empty ledger for each of these rings.
    pub(super) fn begin(&self, whose: &str, rings: &FrontParameters) -> Result<Vec<Place>, LedgerError> {
        let text = name(whose, rings);
        if text.len() > HEAD_BYTES - TEXT_AT {
            return Err(LedgerError::TooMany(text.len()));
        }
        let wrong = |source| LedgerError::File { path: self.path.clone(), source };
        let bytes = bytes(rings);
        // Zeros are records that are free. They are written, so that their pages are there: of a file with holes in a full folder, one would
        // be missed when a request is recorded.
        let zeros = vec![0; usize::try_from(bytes).expect("it is to be mapped")];
        self.file.set_len(0).map_err(wrong)?;
        self.file.write_all_at(&zeros, 0).map_err(|source| match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                LedgerError::Full { path: self.path.clone(), bytes, source }
            }
            _ => wrong(source),
        })?;
        let mapping = self.map(bytes)?;
        let head = Buffer::of_mapping(&mapping, 0, HEAD_BYTES);
        head.write_at(0, MAGIC);
        head.write_at(TEXT_AT, text.as_bytes());
        head.store_u32(VERSION_AT, VERSION, Ordering::Relaxed);
        head.store_u32(LEN_AT, u32::try_from(text.len()).expect("it fits the head"), Ordering::Release);
        Ok(places(&mapping, rings))
    }

    /// The ledgers that another server has left of these rings.
    pub(super) fn resume(&self, whose: &str, rings: &FrontParameters) -> Result<Vec<Place>, LedgerError> {
        let expected = name(whose, rings);
        let other = |found: String| {
            let expected = expected.clone();
            LedgerError::OtherRings { path: self.path.clone(), found, expected }
        };
        let mapping = match self.map(bytes(rings)) {
            Err(LedgerError::Map { source: source @ MapError::TooShort { .. }, .. }) => {
                return Err(other(source.to_string()));
            }
            mapped => mapped?,
        };
        let head = Buffer::of_mapping(&mapping, 0, HEAD_BYTES);
        let len = head.load_u32(LEN_AT, Ordering::Acquire) as usize;
        let mut magic = [0; MAGIC.len()];
        head.read_at(0, &mut magic);
        let version = head.load_u32(VERSION_AT, Ordering::Relaxed);
        if magic != *MAGIC || version != VERSION || len > HEAD_BYTES - TEXT_AT {
            return Err(other(format!("it is no ledger of version {VERSION}")));
        }
        let mut text = vec![0; len];
        head.read_at(TEXT_AT, &mut text);
        if text != expected.as_bytes() {
            let found = blockwork_format::escape(&String::from_utf8_lossy(&text)).to_string();
            return Err(other(format!("it is of \"{found}\"")));
        }
        Ok(places(&mapping, rings))
    }

    /// Removes the file: there is nothing to go on with.
    pub(super) fn remove(self) -> Result<(), LedgerError> {
        std::fs::remove_file(&self.path).map_err(|source| LedgerError::File { path: self.path, source })
    }

    fn map(&self, len: u64) -> Result<Arc<Mapping>, LedgerError> {
        Mapping::new(self.file.as_fd(), len)
            .map_err(|source| LedgerError::Map { path: self.path.clone(), source })
    }
}

/// What tells these rings from others.
fn name(whose: &str, rings: &FrontParameters) -> String {
    let mut text = format!("{whose} {}", rings.abi.protocol());
    for queue in &rings.queues {
        text += &format!(" {}:", queue.event_channel);
        queue.ring_refs.iter().for_each(|gref| text += &format!(" {gref}"));
    }
    text
}

/// Bytes of one ring's records.
fn ring_bytes(rings: &FrontParameters) -> usize {
    let pages = rings.queues.first().map_or(1, |queue| queue.ring_refs.len());
    Ledger::bytes(rings.abi.slots(u32::try_from(pages).expect("a few pages")))
}

fn bytes(rings: &FrontParameters) -> u64 {
    (HEAD_BYTES + rings.queues.len() * ring_bytes(rings)) as u64
}

fn places(mapping: &Arc<Mapping>, rings: &FrontParameters) -> Vec<Place> {
    let offset = |ring| HEAD_BYTES + ring * ring_bytes(rings);
    (0..rings.queues.len()).map(|ring| Place { mapping: mapping.clone(), offset: offset(ring) }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use blockwork_format::blkif::{Abi, QueueParameters};

    fn rings(first: u32) -> FrontParameters {
        let queue = |n| QueueParameters { ring_refs: vec![first + n, 900], event_channel: n };
        FrontParameters { abi: Abi::Bits64, persistent: true, queues: (0..2).map(queue).collect() }
    }

    const XVDA: VirtualDevice = VirtualDevice { number: 51712 };

    #[test]
    fn what_one_server_has_left_the_next_one_finds() {
        let folder = tempfile::tempdir().unwrap();
        let file = LedgerFile::open(folder.path(), 3, XVDA).unwrap();
        let places = file.begin("/vm/a", &rings(8)).unwrap();
        let second = Buffer::of_mapping(&places[1].mapping, places[1].offset, Ledger::bytes(64));
        second.store_u32(0, 1, Ordering::Relaxed);
        assert!(matches!(LedgerFile::open(folder.path(), 3, XVDA), Err(LedgerError::InUse(_))));
        // What is mapped keeps it, too.
        drop((file, places, second));
        let file = LedgerFile::open(folder.path(), 3, XVDA).unwrap();
        let found = file.resume("/vm/a", &rings(8)).unwrap();
        let second = Buffer::of_mapping(&found[1].mapping, found[1].offset, 4);
        assert_eq!(second.load_u32(0, Ordering::Relaxed), 1);
        file.begin("/vm/a", &rings(8)).unwrap();
        assert_eq!(second.load_u32(0, Ordering::Relaxed), 0, "those of new rings are empty");
        file.remove().unwrap();
        assert_eq!(folder.path().read_dir().unwrap().count(), 0);
    }

    /// A folder with room for so much, which is gone in the end. Needs root.
    struct Small(tempfile::TempDir);

    impl Small {
        fn of(size: &std::ffi::CStr) -> Small {
            let folder = tempfile::tempdir().unwrap();
            let flags = rustix::mount::MountFlags::empty();
            rustix::mount::mount("none", folder.path(), "tmpfs", flags, size).unwrap();
            Small(folder)
        }
    }

    impl Drop for Small {
        fn drop(&mut self) {
            let _ = rustix::mount::unmount(self.0.path(), rustix::mount::UnmountFlags::DETACH);
        }
    }

    #[test]
    fn a_ledger_for_which_there_is_no_room_is_refused_by_its_name() {
        let folder = Small::of(c"size=4k");
        let file = LedgerFile::open(folder.0.path(), 3, XVDA).unwrap();
        let refused = file.begin("/vm/a", &rings(8)).expect_err("it is larger than that");
        assert!(matches!(refused, LedgerError::Full { .. }), "{refused}");
        let (text, folder) = (refused.to_string(), folder.0.path().display().to_string());
        assert!(text.starts_with(&folder) && text.contains("no room"), "{text}");
    }

    #[test]
    fn a_ledger_has_all_its_room_before_a_ring_is_served() {
        use std::os::unix::fs::MetadataExt;
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let file = LedgerFile::open(folder.path(), 3, XVDA).unwrap();
        for _ in 0..2 {
            file.begin("/vm/a", &rings(8)).unwrap();
            let found = file.file.metadata().unwrap();
            assert_eq!(found.len(), bytes(&rings(8)));
            assert!(
                found.blocks() * 512 >= found.len(),
                "{} blocks of {} bytes",
                found.blocks(),
                found.len()
            );
        }
    }

    #[test]
    fn a_ledger_of_other_rings_is_not_believed() {
        let folder = tempfile::tempdir().unwrap();
        let file = LedgerFile::open(folder.path(), 3, XVDA).unwrap();
        let said = |whose: &str, rings| file.resume(whose, &rings).unwrap_err().to_string();
        assert!(said("/vm/a", rings(8)).contains("the file has 0 bytes"));
        file.begin("/vm/a", &rings(8)).unwrap();
        for (whose, rings) in [("/vm/b", rings(8)), ("/vm/a", rings(9))] {
            let said = said(whose, rings);
            assert!(said.contains("it is of \"/vm/a x86_64-abi 0: 8 900 1: 9 900\", expected"), "{said}");
        }
        file.file.set_len(0).unwrap();
        file.file.set_len(1 << 20).unwrap();
        assert!(said("/vm/a", rings(8)).contains("it is no ledger of version 1"));
    }
}

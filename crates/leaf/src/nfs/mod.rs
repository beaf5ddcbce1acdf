//! A file on an NFS server as a disk: version 4.0 or 3 over TCP, spoken by the worker itself.
//!
//! ```text
//!   request ─▶ call (call) ─▶ connection's queue ─▶ one send for all that waits (connection)
//!      └─▶ writes that go together (gather, version 4) ─▲          │
//!   ended ◀── client ◀── replies, out of the stream (incoming)
//! ```
//!
//! What the versions differ in is how a file is found (`find`), the messages (`call`), and that a call of version 4 may have several writes.
//! All else, and all that follows, is the same. Version 4 is used without its state: nothing is opened or locked, so a server that has
//! restarted has nothing to be given back, and its grace period is waited for where it insists.
//!
//! | operation | calls |
//! | --- | --- |
//! | read | READ, and again for the rest of a short one, from its last whole sector on |
//! | write | one WRITE, however many segments it has: UNSTABLE, from a copy that is kept until it is committed; in version 4 one call for several of them, where the server does that right (`trust`) |
//! | write with FUA | WRITE, DATA_SYNC, from the client's memory; from a copy where that is a virtual machine's, which its front end can take away |
//! | flush | COMMIT, and after a restart of the server all that it may have forgotten (`commit`), one at a time over all workers; one goes ahead of a flush that is expected (`habit`) |
//! | discard, write-zeroes | none: the limits say that they cannot be done, so zeros are written |
//!
//! Data is copied once, to memory that all workers share (`arena`): it may have to be sent again long after the client was told that
//! it is written, whichever worker finds out. Where that memory is used up, writes are stable ones instead, which need not be kept.
//!
//! Invariants:
//! 1. A flush is answered when all that was answered before it is durable on the server, in whichever life of it, by whichever
//!    worker it was written (`ledger`).
//! 2. A read gives what was answered last, also after a restart that nobody has noticed yet.
//! 3. Memory for what is uncommitted is bounded: by [`UNCOMMITTED_BYTES`], or what the address says.
//! 4. A call is asked again, under the same xid, until it is answered; on a soft mount until its time is over.
//!
//! Not kept off: another server that writes to the same file. The locks of version 3 are a protocol of their own (NLM), which
//! needs services on both sides, those of version 4 a state that has to be kept alive: they are not spoken, and who opens a file for
//! writing is warned.
//!
//! A call is asked again only when its connection is lost, or was silent for `timeo` (a minute, as in Linux)
//! after the last byte of it that moved. A server that still has
//! the first one in its queue must not do it twice: the second time may come when something newer was written there. Servers know it by
//! its xid and the port that it comes from (nfsd's reply cache, nfs-ganesha's DRC), so it comes from the same port again (`connection`).
//! Where that cannot be had, or the server keeps no such list, versions 3 and 4.0, which have no sessions, leave no more than this: a
//! server that crashes has no queue any more, one that hangs is waited for, also where it leaves no room for what is sent, and one that is
//! gone has no queue either; so nothing but a `timeo` shorter than a server hangs leads there.

mod address;
mod arena;
mod call;
mod client;
mod commit;
mod connection;
mod dialog;
mod find;
mod gather;
mod habit;
mod incoming;
mod ledger;
mod mount;
mod patience;
mod sockets;
mod trust;

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use blockwork_engine::{Leaf, LeafShared, LeafSource, Limits, Nanos, SECTOR, Sectors, WBT_LAT};
use blockwork_format::nfs3::{Credential, Handle, Status};

use crate::error::LeafError;
use arena::Arena;
use call::Target;
use client::NfsLeaf;
use dialog::Dialog;
use ledger::Ledger;
use sockets::Sockets;
use trust::Trust;

pub use address::{NfsAddress, NfsOptions, NfsVersion};

/// Memory for writes that the server may still forget, of one file, where its address does not say otherwise.
pub const UNCOMMITTED_BYTES: usize = 64 << 20;
/// The largest request made of a file, as of one on a local disk.
const MAX_SECTORS: Sectors = Sectors(2048);
/// How far to read ahead of a sequential reader.
const READ_AHEAD: Sectors = Sectors(1024);

/// A file that was found on a server, and how to use it.
#[derive(Clone, Debug)]
pub struct NfsFile {
    /// What people call it.
    pub name: String,
    /// Where the server's NFS is.
    pub address: SocketAddr,
    /// Which version it is asked in.
    pub version: NfsVersion,
    /// The file.
    pub handle: Handle,
    /// Who uses it.
    pub credential: Credential,
    /// Its size in bytes.
    pub bytes: u64,
    /// Largest READ, bytes.
    pub read_max: u32,
    /// Largest WRITE, bytes.
    pub write_max: u32,
    /// It may only be read.
    pub read_only: bool,
    /// Memory for what the server may forget, bytes: a power of two of pages.
    pub uncommitted_bytes: usize,
}

impl NfsFile {
    /// Finds the file at `address` on its server.
    pub fn find(name: &str, address: &NfsAddress, read_only: bool) -> Result<NfsFile, LeafError> {
        find::find(name, address, read_only)
    }
}

/// What the workers share.
struct Shared {
    name: String,
    address: SocketAddr,
    target: Target,
    /// Largest WRITE, and all of a call: bytes.
    write_max: u32,
    connections: u8,
    timeo: Nanos,
    retrans: Option<u32>,
    ledger: Mutex<Ledger>,
    trust: Mutex<Trust>,
    sockets: Sockets,
    arena: Arc<Arena>,
    leaf: Arc<LeafShared>,
}

/// A file on an NFS server.
pub struct NfsSource {
    shared: Arc<Shared>,
    sectors: Sectors,
    limits: Limits,
    read_max: u32,
    warnings: Vec<String>,
}

impl NfsSource {
    /// Finds the file on its server.
    pub fn open(name: &str, address: &NfsAddress, read_only: bool) -> Result<NfsSource, LeafError> {
        let file = NfsFile::find(name, address, read_only)?;
        let mut source = NfsSource::new(&file, &address.options)?;
        if !read_only {
            source.warnings.push(
                format!("nothing keeps another server or client off this file (it is used by NFS {}, without locks): see to it that nobody \
                 else writes to it", file.version),
            );
        }
        Ok(source)
    }

    /// A source for a file that was found.
    pub fn new(file: &NfsFile, options: &NfsOptions) -> Result<NfsSource, LeafError> {
        let NfsFile { name, address, version, handle, credential, write_max, .. } = file.clone();
        let sectors = Sectors::from_bytes_floor(file.bytes);
        if sectors == Sectors::ZERO {
            return Err(LeafError::unfit(
                &name,
                format!("its size is {} bytes", file.bytes),
                "a disk has at least one sector of 512 bytes: give the file a size (truncate -s 10G FILE)",
            ));
        }
        let mut warnings = Vec::new();
        let rest = file.bytes % SECTOR;
        if rest > 0 {
            warnings.push(format!(
                "its size of {} bytes is not a multiple of 512: the last {rest} bytes are not part of the disk",
                file.bytes
            ));
        }
        let arena = Arena::new(file.uncommitted_bytes)
            .map_err(|error| LeafError::io(&name, "memory for uncommitted writes", error))?;
        let shared = Shared {
            name,
            address,
            target: Target { version, credential, handle },
            write_max,
            connections: options.connections,
            timeo: Nanos::millis(u64::from(options.timeo) * 100),
            retrans: options.retrans,
            ledger: Mutex::new(Ledger::new(file.uncommitted_bytes)),
            trust: Mutex::default(),
            sockets: Sockets::default(),
            arena,
            leaf: Arc::default(),
        };
        let read_max = file.read_max;
        Ok(NfsSource { shared: Arc::new(shared), sectors, limits: limits(file), read_max, warnings })
    }

    /// What its owner should know.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Its settings, to alter them before any worker opens it.
    pub fn limits_mut(&mut self) -> &mut Limits {
        &mut self.limits
    }
}

fn limits(file: &NfsFile) -> Limits {
    let largest = Sectors::from_bytes_floor(u64::from(file.read_max.min(file.write_max)));
    let max_sectors = Sectors(1 << largest.0.max(1).ilog2()).min(MAX_SECTORS);
    Limits {
        max_hw_sectors: max_sectors,
        max_sectors,
        // A write is copied, and a read comes out of a stream: segments cost nothing.
        max_segments: 512,
        max_hw_segments: connection::CALL_SEGMENTS_MAX,
        read_ahead: READ_AHEAD,
        wbt_lat: WBT_LAT,
        read_only: file.read_only,
        write_cache: true,
        hw_fixed: false,
        max_discard: Sectors::ZERO,
        max_hw_discard: Sectors::ZERO,
        max_write_zeroes: Sectors::ZERO,
        ..Limits::default()
    }
}

impl LeafSource for NfsSource {
    fn open(&self) -> Box<dyn Leaf> {
        Box::new(NfsLeaf::new(self.shared.clone()))
    }
    fn limits(&self) -> &Limits {
        &self.limits
    }
    fn sectors(&self) -> Sectors {
        self.sectors
    }
    fn name(&self) -> &str {
        &self.shared.name
    }
    /// A server's answer to a stable WRITE that has failed is doubted in the ledger, and what it may have lost is sent again. What a COMMIT
    /// that was not answered has not covered is kept.
    fn tells_losses(&self) -> bool {
        true
    }
    fn shared(&self) -> &Arc<LeafShared> {
        &self.shared.leaf
    }
    fn read_now(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let end = offset.checked_add(into.len() as u64).filter(|end| *end <= self.sectors.bytes());
        end.ok_or(io::ErrorKind::UnexpectedEof)?;
        let mut dialog = Dialog::connect(self.shared.address)?;
        dialog.read(&self.shared.target, offset, self.read_max, into)
    }
}

/// What to do about what a server says.
fn remedy(status: Status) -> &'static str {
    match status.0 {
        1 | 13 => {
            "see who may use the file there, as whom we ask (uid=, gid=; the export's squash options), and from where: without a free \
             port below 1024, and the right to it, only exports with `insecure` are to be had"
        }
        2 => "see that the file is there, and the path right",
        28 => "make room in the server's file system",
        30 => "the server exports it read-only: open it with ',ro', or export it writable",
        69 => "the owner's quota is used up there: raise it, or make room",
        70 | 10001 | 10014 | 10019 => {
            "the file was removed or replaced, or is not exported any more: serve it again when it is back"
        }
        10012 | 10015 | 10046 => "another client has locked it, or keeps others from it: see who has it open",
        10016 => "the export asks for a security flavour that is not spoken: allow sec=sys there",
        10021 | 10025 => "it does not take what is asked of it in version 4.0: ask in version 3 (?vers=3)",
        10008 | 10013 | 10018 => {
            "it is busy, or has just restarted: try again in a minute or two; if that does not help, the server's log may say why"
        }
        _ => "the server's log may say why",
    }
}

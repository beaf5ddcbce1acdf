//! A volume as a virtio block device: its features, its configuration, its name.
//!
//! Not offered: a driver's choice between write-back and write-through (CONFIG_WCE). It is made once, by a write to the configuration of
//! which a front end tells the server of that day, and QEMU nobody after that: the next server would not know that this driver sends no
//! flushes. What else says whether a driver flushes, whether it has agreed to FLUSH, every server is told.

use std::sync::{Mutex, MutexGuard, PoisonError};

use blockwork_engine::{Limits, SECTOR, Sectors, Volume};
use blockwork_format::vhost_user::{FEATURE_LOG_ALL, FEATURE_PROTOCOL, protocol};
use blockwork_format::virtio::blk::{Config, ID_BYTES, RangeLimits, feature as blk};
use blockwork_format::virtio::feature;

use super::parts::BIO_BYTES_MAX;
use super::queue::RANGES_MAX;
use super::ring::INDIRECT_MAX;

/// Descriptors of a ring of unknown size: QEMU's default.
const RING_DEFAULT: u32 = 128;
/// Descriptors of a request that are not of its data: the two ends.
pub(super) const ENDS: u32 = 2;
/// Largest write-zeroes of a disk that can only write them, sectors: 16 MiB.
const WRITTEN_ZEROES_MAX: u32 = 32768;

/// What the export offers.
pub(super) struct Device {
    /// As it is now: it may get another size.
    disk: Mutex<Disk>,
    queues: u16,
}

/// The volume, or how it was when it was seen last. The latter keeps nothing of its layers.
enum Disk {
    Here(Volume),
    Away { name: String, sectors: Sectors, limits: Box<Limits>, read_only: bool },
}

impl Disk {
    fn away(volume: &Volume) -> Disk {
        let (name, limits) = (volume.name.clone(), Box::new(volume.limits().clone()));
        Disk::Away { name, sectors: volume.sectors(), limits, read_only: volume.read_only }
    }

    fn name(&self) -> &str {
        match self {
            Disk::Here(volume) => &volume.name,
            Disk::Away { name, .. } => name,
        }
    }

    fn sectors(&self) -> Sectors {
        match self {
            Disk::Here(volume) => volume.sectors(),
            Disk::Away { sectors, .. } => *sectors,
        }
    }

    fn limits(&self) -> &Limits {
        match self {
            Disk::Here(volume) => volume.limits(),
            Disk::Away { limits, .. } => limits,
        }
    }

    fn read_only(&self) -> bool {
        match self {
            Disk::Here(volume) => volume.read_only,
            Disk::Away { read_only, .. } => *read_only,
        }
    }
}

impl Device {
    /// Of a volume that is away, and was so when it was seen.
    pub(super) fn new(seen: &Volume, queues: u16) -> Device {
        Device { disk: Mutex::new(Disk::away(seen)), queues }
    }

    fn disk(&self) -> MutexGuard<'_, Disk> {
        self.disk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The volume is here, or has changed: what the front end asks for from now on is told by this one.
    pub(super) fn set_volume(&self, volume: Volume) {
        *self.disk() = Disk::Here(volume);
    }

    /// The volume is away. What the front end asks for is told as it was.
    pub(super) fn forget_volume(&self) {
        let mut disk = self.disk();
        if let Disk::Here(volume) = &*disk {
            *disk = Disk::away(volume);
        }
    }

    /// Size now: arrays grow, and volumes.
    pub(super) fn sectors(&self) -> u64 {
        self.disk().sectors().0
    }

    /// Queues that there may be.
    pub(super) fn queues(&self) -> u16 {
        self.queues
    }

    pub(super) fn features(&self) -> u64 {
        let always = feature::VERSION_1
            | feature::INDIRECT_DESC
            | feature::EVENT_IDX
            | feature::RING_PACKED
            | FEATURE_PROTOCOL
            | FEATURE_LOG_ALL
            | blk::SEG_MAX
            | blk::BLK_SIZE
            | blk::TOPOLOGY
            | blk::FLUSH
            | blk::MQ;
        let disk = self.disk();
        let writes = if disk.read_only() { blk::RO } else { blk::WRITE_ZEROES };
        let discards = if !disk.read_only() && disk.limits().discards() { blk::DISCARD } else { 0 };
        always | writes | discards
    }

    /// What a driver may have taken: also what was offered while the volume could do it. A front end says the same again when it stops and goes on,
    /// migrates, or comes anew, and its guest has heard of no change. What the volume cannot do any more is answered so.
    pub(super) fn features_ever(&self) -> u64 {
        self.features() | blk::RO | blk::WRITE_ZEROES | blk::DISCARD
    }

    pub(super) fn protocol_features(&self) -> u64 {
        protocol::MQ
            | protocol::LOG_SHMFD
            | protocol::REPLY_ACK
            | protocol::BACKEND_REQ
            | protocol::CONFIG
            | protocol::INFLIGHT_SHMFD
            | protocol::RESET_DEVICE
            | protocol::CONFIGURE_MEM_SLOTS
            | protocol::STATUS
    }

    /// The configuration for a driver whose rings have at least `ring` descriptors, as far as that is known. A request's data
    /// may take as many as one of them has room for, even where the driver has no indirect tables.
    pub(super) fn config(&self, ring: Option<u32>) -> Config {
        let disk = self.disk();
        let limits = disk.limits();
        let block = limits.logical_block_size;
        let sectors = |sectors: u64| u32::try_from(sectors).unwrap_or(u32::MAX);
        let ranges = |sectors: u32| RangeLimits { sectors, ranges: RANGES_MAX };
        let zeroes = match sectors(limits.max_write_zeroes.0) {
            0 => WRITTEN_ZEROES_MAX,
            most => most,
        };
        let has_discards = !disk.read_only() && limits.discards();
        Config {
            capacity: disk.sectors().0,
            size_max: 0,
            seg_max: ring.unwrap_or(RING_DEFAULT).min(INDIRECT_MAX as u32).saturating_sub(ENDS).max(1),
            blk_size: block,
            physical_block_exp: (limits.physical_block_size / block).checked_ilog2().unwrap_or(0) as u8,
            min_io_size: u16::try_from(limits.io_min / block).unwrap_or(u16::MAX),
            // Drivers make requests as large, and some no larger.
            opt_io_size: limits.io_opt.min(BIO_BYTES_MAX as u32) / block,
            writeback: true,
            num_queues: self.queues,
            discard: if has_discards {
                ranges(sectors(limits.max_discard.0))
            } else {
                RangeLimits::default()
            },
            discard_sector_alignment: if has_discards {
                limits.discard_granularity / SECTOR as u32
            } else {
                0
            },
            write_zeroes: if disk.read_only() { RangeLimits::default() } else { ranges(zeroes) },
            write_zeroes_may_unmap: !disk.read_only(),
        }
    }

    /// The volume's name, as much as fits: of a long one the end, which tells more.
    pub(super) fn id(&self) -> [u8; ID_BYTES] {
        let disk = self.disk();
        let name = disk.name().as_bytes();
        let end = &name[name.len().saturating_sub(ID_BYTES)..];
        let mut id = [0; ID_BYTES];
        id[..end.len()].copy_from_slice(end);
        id
    }
}

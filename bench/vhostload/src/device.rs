//! The device's side of a split ring, and no more than that: for back ends that are nothing else, to measure others by. It believes
//! what the ring says.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{Ordering, fence};

use anyhow::{Context, Result, ensure};
use blockwork_format::vhost_user::VringAddr;
use blockwork_format::virtio::blk::{RequestHeader, request, status};
use blockwork_format::virtio::{Descriptor, descriptor_flag, need_event, split};
use blockwork_memory::{Buffer, Mapping};

use crate::disk::Disk;
use crate::guest::{Area, Guest};

/// Header, data, status: the table of a request with data in one piece.
const TABLE: usize = 3;

/// The first queue of a disk that has no server: split, with indirect tables and event indices.
pub struct DeviceRing {
    memory: Buffer,
    descriptors: usize,
    available: usize,
    used: usize,
    size: u16,
    kick: OwnedFd,
    call: OwnedFd,
    /// How many had come when that was last read: the driver's processor has to be asked for it.
    came: u16,
    /// How many were taken, and answered, of all that ever came.
    taken: u16,
    answered: u16,
    /// Of these, the driver knows.
    published: u16,
}

/// A read that a driver wants.
#[derive(Clone, Copy, Debug)]
pub struct Read {
    /// The first descriptor of its chain.
    pub head: u16,
    /// Where on the disk, sectors of 512 bytes.
    pub sector: u64,
    /// Where in the guest's memory.
    pub data: Area,
    ended: usize,
}

/// What a back end is told of a queue, in whatever thread it will be.
pub(crate) struct Shared {
    file: File,
    len: usize,
    address: VringAddr,
    size: u16,
    kick: OwnedFd,
    call: OwnedFd,
}

impl Shared {
    /// Of the first queue of `disk`.
    pub fn new(disk: &Disk) -> Result<Shared> {
        let queue = disk.queues.first().context("a disk without queues")?;
        let (kick, call) = queue.bells()?;
        let file = disk.guest.file.try_clone()?;
        Ok(Shared {
            file,
            len: disk.guest.memory.len(),
            address: queue.address(0),
            size: queue.ring_size(),
            kick,
            call,
        })
    }

    /// With the guest's memory at hand.
    pub fn map(self) -> Result<DeviceRing> {
        let mapping =
            Mapping::new(self.file.as_fd(), self.len as u64).context("mapping the guest's memory")?;
        let at = |user: u64| Area::at_user(user, 0).offset;
        Ok(DeviceRing {
            memory: Buffer::of_mapping(&mapping, 0, self.len),
            descriptors: at(self.address.descriptors),
            available: at(self.address.available),
            used: at(self.address.used),
            size: self.size,
            kick: self.kick,
            call: self.call,
            came: 0,
            taken: 0,
            answered: 0,
            published: 0,
        })
    }
}

impl DeviceRing {
    /// The guest's memory.
    pub fn memory(&self) -> &Buffer {
        &self.memory
    }

    /// By what the driver kicks.
    pub fn kick(&self) -> &OwnedFd {
        &self.kick
    }

    /// The next chain's first descriptor.
    pub fn take(&mut self) -> Option<u16> {
        if self.came == self.taken && self.waiting() == 0 {
            return None;
        }
        let place = usize::from(self.taken % self.size);
        let head = self.available + split::ENTRIES + split::AVAIL_ENTRY * place;
        self.taken = self.taken.wrapping_add(1);
        Some(self.memory.load_u16(head, Ordering::Relaxed))
    }

    /// How many wait to be taken.
    pub fn waiting(&mut self) -> u16 {
        self.came = self.memory.load_u16(self.available + split::INDEX, Ordering::Acquire);
        self.came.wrapping_sub(self.taken)
    }

    /// Asks for a kick with the next request; whether there is none yet, so that a kick will come.
    pub fn want_kick(&mut self) -> bool {
        self.memory.store_u16(self.used + split::avail_event(self.size), self.taken, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.waiting() == 0
    }

    /// What the chain wants.
    ///
    /// # Errors
    /// No read with an indirect table and data in one piece.
    pub fn read_of(&self, head: u16) -> Result<Read> {
        let table = self.descriptor(self.descriptors + 16 * usize::from(head));
        ensure!(table.has(descriptor_flag::INDIRECT), "a request without a table");
        let mut pieces = [(0, 0); TABLE];
        for (i, piece) in pieces.iter_mut().enumerate() {
            let descriptor = self.descriptor(offset(table.address) + 16 * i);
            *piece = (offset(descriptor.address), descriptor.len as usize);
        }
        let [header, data, ended] = pieces;
        let header = RequestHeader::decode(&self.bytes(header.0));
        ensure!(header.kind == request::IN, "it only reads");
        Ok(Read { head, sector: header.sector, data: Area { offset: data.0, len: data.1 }, ended: ended.0 })
    }

    fn descriptor(&self, at: usize) -> Descriptor {
        Descriptor::decode(&self.bytes(at))
    }

    fn bytes(&self, at: usize) -> [u8; 16] {
        let mut bytes = [0; 16];
        self.memory.read_at(at, &mut bytes);
        bytes
    }

    /// It is done. The driver knows when this is published.
    pub fn answer(&mut self, read: &Read) {
        self.memory.write_at(read.ended, &[status::OK]);
        let mut entry = [0; split::USED_ENTRY];
        entry[..2].copy_from_slice(&read.head.to_le_bytes());
        entry[4..8].copy_from_slice(&(read.data.len as u32 + 1).to_le_bytes());
        let place = usize::from(self.answered % self.size);
        self.memory.write_at(self.used + split::ENTRIES + split::USED_ENTRY * place, &entry);
        self.answered = self.answered.wrapping_add(1);
    }

    /// Tells the driver of what is done, and calls it if it wants that; whether there was anything.
    ///
    /// # Errors
    /// It cannot be called.
    pub fn publish(&mut self) -> Result<bool> {
        if self.answered == self.published {
            return Ok(false);
        }
        self.memory.store_u16(self.used + split::INDEX, self.answered, Ordering::Release);
        fence(Ordering::SeqCst);
        let event = self.memory.load_u16(self.available + split::used_event(self.size), Ordering::Relaxed);
        if need_event(event, self.answered, self.published) {
            rustix::io::write(&self.call, &1_u64.to_ne_bytes()).context("calling the driver")?;
        }
        self.published = self.answered;
        Ok(true)
    }
}

/// Where that address of the guest's is in its memory.
fn offset(guest: u64) -> usize {
    usize::try_from(guest - Guest::base()).expect("an address of the guest's memory")
}

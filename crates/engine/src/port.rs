//! A port: where one client's bios come from. Exports implement it; so do the simulator's clients.
//!
//! The worker calls a port with what concerns it, in batches: [`Port::event`] for each operation of its own that
//! completed, [`Port::done`] for each bio, and once per turn, when all of those were delivered, [`Port::turn`], in which
//! it sends what it has gathered. A port that has nothing to do is not called.
//!
//! A port is removed when its `turn` returns [`PortState::Closed`]. Bios and operations of its own that it has under way
//! then run to their end, with their memory; nobody is told of them.

use crate::bio::{Bio, Done, Errno, Flags, Op};
use crate::core::{Core, Owner};
use crate::env::{Completion, Env, Token};
use crate::event::Event;
use crate::leaf::Allocation;
use crate::ring::RingStats;
use crate::units::{Nanos, Sector, Sectors};
use crate::volume::{Volume, VolumeId};
use blockwork_memory::{Pool, Segments};

/// A port's number on its worker. Not used again while the worker lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PortId(pub u32);

/// What a port says at the end of its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortState {
    /// Go on.
    Open,
    /// Remove me.
    Closed,
}

/// One client of a worker.
pub trait Port<E: Env> {
    /// Called once, when the port is added.
    fn open(&mut self, cx: &mut Context<'_, E>);
    /// An operation that the port started (with [`Context::token`]) in the environment has completed.
    fn event(&mut self, cx: &mut Context<'_, E>, local: u32, completion: Completion);
    /// A bio of this port has completed.
    fn done(&mut self, cx: &mut Context<'_, E>, done: Done);
    /// All events and bios of this turn were delivered.
    fn turn(&mut self, cx: &mut Context<'_, E>) -> PortState;
    /// The worker is asked to stop: take no new requests; finish those taken; then close.
    fn drain(&mut self, cx: &mut Context<'_, E>);
}

/// What a port may do while it is called.
pub struct Context<'a, E: Env> {
    /// The environment, for the port's own operations.
    pub env: &'a mut E,
    pub(crate) core: &'a mut Core,
    pub(crate) port: PortId,
}

impl<E: Env> Context<'_, E> {
    /// This port.
    pub fn id(&self) -> PortId {
        self.port
    }
    /// A token for an operation of this port's own; `local` comes back in [`Port::event`].
    #[inline]
    pub fn token(&self, local: u32) -> Token {
        Token::port(self.port.0, local)
    }
    /// The worker's stock of memory.
    #[inline]
    pub fn pool(&self) -> &Pool {
        &self.core.pool
    }
    /// A volume.
    #[inline]
    pub fn volume(&self, id: VolumeId) -> &Volume {
        &self.core.volumes[id.0 as usize]
    }
    /// All volumes, by number.
    pub fn volumes(&self) -> &[Volume] {
        &self.core.volumes
    }
    /// Time.
    pub fn now(&self) -> Nanos {
        self.env.now()
    }

    /// Submits a bio; it completes by [`Port::done`] with `cookie`, never before this call returns. Ranges outside the
    /// volume and writes to a read-only one complete with an error.
    #[inline]
    pub fn submit(&mut self, volume: VolumeId, cookie: u64, bio: Bio) {
        self.core.submit(volume, Owner::Port { port: self.port, cookie }, bio);
    }

    /// Does a read or write on the spot, where its volume and the devices below need not wait for anything: then it has succeeded, has its
    /// memory still, and there is no [`Port::done`]. If not, it is submitted under that cookie, and false returned; also where it is not whole
    /// logical blocks, as by `submit_bytes`.
    #[inline]
    pub fn run(&mut self, volume: VolumeId, bio: &mut Bio, cookie: impl FnOnce() -> u64) -> bool {
        self.core.run(volume, self.port, bio, cookie)
    }

    /// As `submit`, for a range of bytes that need not be whole logical blocks: such a range is read, and for writes
    /// modified and written back, on the slow path. `data` has exactly `len` bytes for reads and writes.
    pub fn submit_bytes(
        &mut self,
        volume: VolumeId,
        cookie: u64,
        op: Op,
        flags: Flags,
        offset: u64,
        len: u64,
        data: Segments,
    ) {
        let owner = Owner::Port { port: self.port, cookie };
        self.core.submit_bytes(volume, owner, op, flags, offset, len, data);
    }

    /// What the volume holds at `sector` and how far (at most `nr`) that goes. May do a cheap system call per extent.
    pub fn allocation(
        &mut self,
        volume: VolumeId,
        sector: Sector,
        nr: Sectors,
    ) -> Result<(Allocation, Sectors), Errno> {
        self.core.allocation(volume, sector, nr)
    }

    /// A number that is another one when the volume may have been altered since it was asked for: by any client, of whatever volume that has
    /// a disk in common with it. From the first question on, writes to its disks are counted, as those to disks that read ahead
    /// are in any case.
    pub fn changes(&self, volume: VolumeId) -> u64 {
        self.core.changes(volume)
    }

    /// Asks for a turn of this port even if nothing else happens to it.
    pub fn wake_me(&mut self) {
        self.core.mark_dirty(self.port);
    }

    /// Whether this worker lets more bios go on before it waits, for which their time has come: what is told a client now reaches it
    /// while the worker works on those.
    #[inline]
    pub fn more_is_due(&self) -> bool {
        self.core.more_is_due()
    }

    /// Whether no device has a request of this worker's.
    pub fn devices_are_idle(&self) -> bool {
        self.core.devices_are_idle()
    }

    /// What a read takes that has a device to itself, besides its data's time on the way: of those devices that have a request of this worker's now, as
    /// far as it is known, that of the farthest.
    pub fn distance(&self) -> Option<Nanos> {
        self.core.distance()
    }

    /// Tells whoever traces that a client's ring on that volume has become full.
    pub fn ring_is_full(&mut self, volume: VolumeId, ring: &RingStats) {
        if self.core.tracer.on() {
            let (time, node) = (self.env.now(), self.volume(volume).node());
            self.core.tracer.push(Event::ring_full(time, node, &ring.snapshot(time)));
        }
    }

    /// Asks for a turn of another port of this worker. Of one that has closed: nothing happens.
    pub fn wake(&mut self, port: PortId) {
        self.core.mark_dirty(port);
    }
}

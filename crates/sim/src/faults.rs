//! What may go wrong with a simulated device, how often, and when exactly.
//!
//! Rates are per million requests, drawn from the device's own stream of random numbers; a rate of zero draws
//! nothing, so switching one fault on does not change when the others strike first. [`crate::World::fail_nth`] puts
//! one fault on exactly the n-th request of a device: for loops that let each I/O of an operation fail in turn.

use blockwork_engine::{Errno, Nanos};

/// Something that befalls one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It fails with this error, once. A write that fails has changed each of its atomic units, or not.
    Error(Errno),
    /// A read or write fails with EIO, and so does every read of one of its sectors from now on, until that sector is
    /// written again: a latent sector error. (A write that fails so leaves the sector unreadable.)
    Latent,
    /// As `Latent`, but writing does not help.
    ForEver,
    /// A read or write transfers only part of what it should, and says so.
    Short,
    /// It takes [`Faults::stall_time`] longer.
    Stall,
    /// A flush fails with EIO, and most of what it should have made durable is forgotten; the next flush succeeds. (What
    /// Linux file systems and disks have been seen to do: "fsyncgate".) So does the flush that is part of a DSYNC write to a volatile
    /// cache, behind its data. Other requests fail with EIO.
    LostFlush,
    /// A write lands at another place of the device, and reports success.
    Misdirected,
}

/// How often what goes wrong, in requests per million of the kind that it can befall.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Faults {
    /// Reads that fail with EIO, once.
    pub read_errors: u32,
    /// Writes that fail with EIO, once.
    pub write_errors: u32,
    /// Flushes that fail with EIO but lose nothing.
    pub flush_errors: u32,
    /// Discards and write-zeroes that fail with EIO.
    pub discard_errors: u32,
    /// Requests that fail with EAGAIN, having done nothing: to be tried again, and never heard of by a client.
    pub again: u32,
    /// Reads that hit a new latent sector error.
    pub latent_errors: u32,
    /// Reads and writes that hit a sector that fails for ever.
    pub permanent_errors: u32,
    /// Reads and writes that transfer less than asked.
    pub short: u32,
    /// Requests that stall.
    pub stalls: u32,
    /// For how long: by default 31 s, a second beyond the kernel's usual patience with a disk.
    pub stall_time: Nanos,
    /// Flushes that fail and lose data, those of DSYNC writes too.
    pub lost_flushes: u32,
    /// Writes that land elsewhere.
    pub misdirected: u32,
    /// Times slower than its model says.
    pub slowdown: u32,
}

impl Faults {
    /// None.
    pub const NONE: Faults = Faults {
        read_errors: 0,
        write_errors: 0,
        flush_errors: 0,
        discard_errors: 0,
        again: 0,
        latent_errors: 0,
        permanent_errors: 0,
        short: 0,
        stalls: 0,
        stall_time: Nanos::secs(31),
        lost_flushes: 0,
        misdirected: 0,
        slowdown: 1,
    };
}

impl Default for Faults {
    /// [`Faults::NONE`].
    fn default() -> Faults {
        Faults::NONE
    }
}

/// Odd but legal behaviour of the environment itself, per million waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Chaos {
    /// `wait` returns although nothing has happened.
    pub spurious_wakeups: u32,
    /// `wait` returns only some of the completions that are there.
    pub partial_batches: u32,
    /// Completions of one batch come in another order.
    pub shuffled_batches: u32,
}

/// Ways in which a leaf deceives its users: for proving that the tests would notice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lies {
    /// A flush is acknowledged, and not done.
    pub flush: bool,
    /// FUA is ignored.
    pub fua: bool,
}

//! What the labs of arrays have in common, be these md's or LVM's: how clients take their time, how devices misbehave ([`troubles`]), what rows
//! with a parity have to hold ([`rows`]), and how an array is put to rest.
#![allow(dead_code, reason = "each test file uses its part")]

pub mod rows;
pub mod troubles;

use blockwork_engine::{FileId, Nanos, Quiescence};
use blockwork_sim::{ClientConfig, Random, World};

use crate::running::{Stack, worker};

/// How clients take their time. What an array does when it is idle, or a part of it is, has to happen meanwhile.
#[derive(Clone, Copy, Debug)]
pub enum Pace {
    /// As fast as it goes.
    Rush,
    /// With a long pause now and then.
    Pauses(Nanos),
    /// Little by little for seconds, everywhere, and nearly never a flush.
    Trickle,
    /// As fast as it goes, with many flushes between small reads and writes.
    Flushes,
}

impl Pace {
    pub fn draw(random: &mut Random) -> Pace {
        match random.below(4) {
            0 => Pace::Rush,
            1 => Pace::Pauses(Nanos::millis(400)),
            2 => Pace::Pauses(Nanos::secs(3)),
            _ => Pace::Trickle,
        }
    }

    /// Has a client take its time so.
    pub fn shape(self, config: &mut ClientConfig) {
        match self {
            Pace::Rush => {}
            Pace::Flushes => (config.weights, config.len_max) = ([20, 60, 15, 0, 5], 4096),
            Pace::Pauses(pause) => config.pause_max = pause,
            Pace::Trickle => {
                (config.pause_percent, config.pause_max) = (80, Nanos::millis(60));
                (config.weights, config.fua_percent) = ([20, 60, 1, 5, 5], 0);
                (config.bios, config.depth, config.len_max) = (6 * config.bios, 1, 4096);
            }
        }
    }
}

/// Whether a device has been written to in its life.
pub fn has_written(world: &World) -> bool {
    let writes = |n| world.counters(FileId(n)).writes + world.counters(FileId(n)).zeroes;
    (0..world.devices()).any(|n| writes(n) > 0)
}

/// Has the layers record what they have to, when all workers have ended.
pub fn close(world: &World, stack: &Stack) -> bool {
    worker(stack, world.env(), 0, false, &Quiescence::default()).close().is_ok()
}

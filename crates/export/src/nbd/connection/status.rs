//! Block status: what is allocated, as `base:allocation` tells it.
//!
//! Invariant: every answer tells something, so that a client that asks again from where it ends gets to the end of the range. How far a
//! turn looks is said in `looks`.

use blockwork_engine::{Allocation, Context, Env, Errno, Nanos, SECTOR, Sector, Sectors};
use blockwork_format::nbd::{WireErrno, base_allocation, block_status};
use blockwork_uring::Uring;

use super::{Connection, Phase, local};
use crate::looks::{LOOK_TIME, LOOKUPS_MAX};
use crate::nbd::session::{ALLOCATION_CONTEXT, Submit};

/// What a look-up has found.
struct Found {
    allocation: Allocation,
    /// How far, at least one sector.
    nr: Sectors,
    /// There is no time for another one.
    is_last: bool,
}

impl Connection {
    /// Answers at once.
    pub(super) fn block_status(&mut self, cx: &mut Context<'_, Uring>, submit: Submit, one: bool) {
        let Phase::Transmission(session) = &self.phase else { unreachable!("only in transmission") };
        let volume = session.export().volume;
        let (start, before) = (cx.env.processor_time(), self.looked);
        let lookup = |sector, nr| {
            let (allocation, nr) = cx.allocation(volume, sector, nr)?;
            self.looked = before + cx.env.processor_time().since(start);
            Ok::<_, Errno>(Found { allocation, nr, is_last: self.looked >= LOOK_TIME })
        };
        match extents(submit.offset, submit.len, one, lookup) {
            Ok(extents) => {
                let mut out = Vec::new();
                let style = session.style();
                block_status(&mut out, style, submit.cookie, submit.offset, ALLOCATION_CONTEXT, &extents);
                self.outbox.reply(cx.pool(), &out);
            }
            Err(errno) => {
                let head = session.failure(&submit, WireErrno::from_linux(errno.0));
                self.outbox.reply(cx.pool(), head.as_bytes());
            }
        }
        if self.looked >= LOOK_TIME {
            self.pause(cx, Nanos(0));
        }
    }

    /// Takes nothing further in this turn: the worker looks at everybody else first; nor for that long.
    pub(super) fn pause(&mut self, cx: &mut Context<'_, Uring>, rest: Nanos) {
        self.paused = true;
        let token = cx.token(local::AGAIN);
        cx.env.timeout(token, rest);
    }
}

/// What lies in the `len` bytes (not none) at `offset`: lengths in bytes with bits of `base:allocation`, neighbours being
/// different. May end early, but not before something was told; never goes beyond the range.
fn extents<E>(
    offset: u64,
    len: u64,
    one: bool,
    mut lookup: impl FnMut(Sector, Sectors) -> Result<Found, E>,
) -> Result<Vec<(u64, u32)>, E> {
    let end = offset + len;
    let last = end.div_ceil(SECTOR);
    let mut sector = offset / SECTOR;
    let mut place = offset;
    let mut told: Vec<(u64, u32)> = Vec::new();
    // A client that wants more asks again from where the answer ends.
    for _ in 0..LOOKUPS_MAX {
        if sector == last {
            break;
        }
        let asked = Sectors(last - sector);
        let Found { allocation, nr, is_last } = lookup(Sector(sector), asked)?;
        assert!(
            nr > Sectors::ZERO && nr.0 <= asked.0,
            "an extent of {nr} sectors at {sector}, {asked} were asked about"
        );
        sector += nr.0;
        let next = (sector * SECTOR).min(end);
        let bits = bits_of(allocation);
        match told.last_mut() {
            Some((len, before)) if *before == bits => *len += next - place,
            Some(_) if one => break,
            _ => told.push((next - place, bits)),
        }
        place = next;
        if is_last {
            break;
        }
    }
    Ok(told)
}

fn bits_of(allocation: Allocation) -> u32 {
    match allocation {
        Allocation::Data => 0,
        Allocation::Hole => base_allocation::HOLE | base_allocation::ZERO,
        Allocation::Zero => base_allocation::ZERO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bits(sector: u64) -> Allocation {
        match ((sector * 2_654_435_761) >> 6) & 7 {
            0 | 1 => Allocation::Hole,
            2 => Allocation::Zero,
            _ => Allocation::Data,
        }
    }

    proptest! {
        #[test]
        fn extents_say_of_each_byte_what_the_device_says_of_its_sector(
            offset in 0u64..100_000, len in 1u64..100_000, one: bool, step in 1u64..9, mut time in 1u32..300,
        ) {
            let look = |sector: Sector, nr: Sectors| {
                let mut n = 1;
                while n < nr.0.min(step) && bits(sector.0 + n) == bits(sector.0) { n += 1; }
                time -= 1;
                Ok::<_, ()>(Found { allocation: bits(sector.0), nr: Sectors(n), is_last: time == 0 })
            };
            let found = extents(offset, len, one, look).unwrap();
            prop_assert!(!found.is_empty() && (!one || found.len() == 1));
            let told: u64 = found.iter().map(|(len, _)| len).sum();
            prop_assert!(told <= len && found.iter().all(|(len, _)| *len > 0));
            prop_assert!(found.windows(2).all(|pair| pair[0].1 != pair[1].1));
            let mut at = offset;
            for (len, flags) in found {
                for sector in at / SECTOR..(at + len).div_ceil(SECTOR) {
                    let expected = match bits(sector) { Allocation::Data => 0, Allocation::Zero => 2, Allocation::Hole => 3 };
                    prop_assert_eq!(flags, expected);
                }
                at += len;
            }
        }
    }
}

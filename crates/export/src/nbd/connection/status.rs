//! Block status: what is allocated, as `base:allocation` tells it.

use blockwork_engine::{Allocation, Context, SECTOR, Sector, Sectors};
use blockwork_format::nbd::{WireErrno, base_allocation, block_status};
use blockwork_uring::Uring;

use super::{Connection, Phase};
use crate::nbd::session::{ALLOCATION_CONTEXT, Submit};

/// Most look-ups for one request: each may be a system call, and other clients wait. A client that wants more asks again
/// from where the answer ends.
const LOOKUPS_MAX: usize = 256;

impl Connection {
    /// Answers at once.
    pub(super) fn block_status(&mut self, cx: &mut Context<'_, Uring>, submit: Submit, one: bool) {
        let Phase::Transmission(session) = &self.phase else { unreachable!("only in transmission") };
        let volume = session.export().volume;
        let lookup = |sector, nr| cx.allocation(volume, sector, nr);
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
    }
}

/// What lies in the `len` bytes (not none) at `offset`: lengths in bytes with bits of `base:allocation`, neighbours being
/// different. May end early, but not before something was told; never goes beyond the range.
fn extents<E>(
    offset: u64,
    len: u64,
    one: bool,
    mut lookup: impl FnMut(Sector, Sectors) -> Result<(Allocation, Sectors), E>,
) -> Result<Vec<(u64, u32)>, E> {
    let end = offset + len;
    let last = end.div_ceil(SECTOR);
    let mut sector = offset / SECTOR;
    let mut place = offset;
    let mut found: Vec<(u64, u32)> = Vec::new();
    for _ in 0..LOOKUPS_MAX {
        if sector == last {
            break;
        }
        let (allocation, nr) = lookup(Sector(sector), Sectors(last - sector))?;
        let bits = match allocation {
            Allocation::Data => 0,
            Allocation::Hole => base_allocation::HOLE | base_allocation::ZERO,
            Allocation::Zero => base_allocation::ZERO,
        };
        assert!(
            nr > Sectors::ZERO && nr.0 <= last - sector,
            "an extent of {nr} sectors at {sector}, {last} the end"
        );
        sector += nr.0;
        let next = (sector * SECTOR).min(end);
        match found.last_mut() {
            Some((len, before)) if *before == bits => *len += next - place,
            Some(_) if one => break,
            _ => found.push((next - place, bits)),
        }
        place = next;
    }
    Ok(found)
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
            offset in 0u64..100_000, len in 1u64..100_000, one: bool, step in 1u64..9,
        ) {
            let look = |sector: Sector, nr: Sectors| {
                let mut n = 1;
                while n < nr.0.min(step) && bits(sector.0 + n) == bits(sector.0) { n += 1; }
                Ok::<_, ()>((bits(sector.0), Sectors(n)))
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

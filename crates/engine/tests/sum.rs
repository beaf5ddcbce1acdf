//! Parts of reads that are computed from others: what reaches the leaf, what the client gets, and what happens where a part cannot be read.

mod rig;

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use blockwork_engine::*;
use blockwork_memory::{Buffer, Segment};
use rig::{Half, Rig, limits};

/// Of each of four legs of the leaf: data, data, their sum, and the sum of the first and twice the second.
const LEG: u64 = 1024;
/// Sectors that the layer reads from their place; behind that all of the first leg is computed.
const PLAIN: u64 = 16;

#[derive(Debug)]
struct Lacking {
    shape: Shape,
    legs: [Arc<dyn Layer>; 4],
    asked: Arc<AtomicU64>,
    cured: Arc<Mutex<Vec<Failure>>>,
}

impl Layer for Lacking {
    fn shape(&self) -> &Shape {
        &self.shape
    }
    fn resolve(&self, span: Span, cx: &mut Resolver<'_>) -> Result<(), Defer> {
        let plain = Sectors(PLAIN.saturating_sub(span.sector.0)).min(span.nr);
        if plain > Sectors::ZERO {
            cx.pass(self.shape.node, span.sector, &*self.legs[0], span.piece(Sectors::ZERO, plain))?;
        }
        if plain < span.nr {
            cx.sum(self.shape.node, span.piece(plain, span.nr - plain));
        }
        Ok(())
    }
    fn terms(&self, span: Span, without: &[NodeId]) -> Result<Vec<Term>, Errno> {
        self.asked.fetch_add(1, Relaxed);
        let ways = [[(1, 1), (2, 1)], [(1, 2), (3, 1)]];
        let has_all =
            |way: &&[(usize, u8); 2]| !way.iter().any(|(leg, _)| without.contains(&self.legs[*leg].node()));
        let way = ways.iter().find(has_all).ok_or(Errno::EIO)?;
        let term = |(leg, factor): &(usize, u8)| Term {
            below: self.legs[*leg].clone(),
            sector: span.sector,
            factor: Gf256(*factor),
        };
        Ok(way.iter().map(term).collect())
    }
    fn is_redundant(&self) -> bool {
        true
    }
    fn cure(&self, failure: &Failure) -> Cure {
        self.cured.lock().unwrap().push(*failure);
        Cure::None
    }
    fn below(&self) -> Vec<Arc<dyn Layer>> {
        self.legs.to_vec()
    }
}

struct Computing {
    rig: Rig,
    asked: Arc<AtomicU64>,
    cured: Arc<Mutex<Vec<Failure>>>,
    /// What the first leg had.
    data: Vec<u8>,
}

fn computing() -> Computing {
    let (asked, cured) = (Arc::<AtomicU64>::default(), Arc::<Mutex<Vec<Failure>>>::default());
    let (told, noted) = (asked.clone(), cured.clone());
    let rig = Rig::with_stack(limits(), move |leaf| {
        let shape = |node, sectors| Shape {
            node: NodeId(node),
            sectors: Sectors(sectors),
            limits: leaf.limits().clone(),
        };
        let leg = |n: u16| -> Arc<dyn Layer> {
            Arc::new(Half { shape: shape(2 + n, LEG), start: u64::from(n) * LEG, below: leaf.clone() })
        };
        Arc::new(Lacking {
            shape: shape(1, LEG),
            legs: [leg(0), leg(1), leg(2), leg(3)],
            asked: told,
            cured: noted,
        })
    });
    let bytes = (LEG * SECTOR) as usize;
    let noise = |seed: usize| {
        (0..bytes).map(move |at| (at.wrapping_mul(2_654_435_761).wrapping_add(seed * 77) >> 9) as u8)
    };
    let data: Vec<u8> = noise(1).collect();
    let other: Vec<u8> = noise(2).collect();
    {
        let mut device = rig.device.lock().unwrap();
        device.bytes[..PLAIN as usize * 512].copy_from_slice(&data[..PLAIN as usize * 512]);
        for (at, (first, second)) in data.iter().zip(&other).enumerate() {
            device.bytes[bytes + at] = *second;
            device.bytes[2 * bytes + at] = first ^ second;
            device.bytes[3 * bytes + at] = first ^ (Gf256(2) * Gf256(*second)).0;
        }
    }
    Computing { rig, asked, cured, data }
}

/// Reads it in several segments, and compares.
fn expect(computing: &mut Computing, sector: u64, nr: u64) {
    let Computing { rig, data, .. } = computing;
    let mut bio = rig.read(sector, nr);
    let whole = std::mem::take(&mut bio.data);
    let bytes = (nr * SECTOR) as usize;
    let cuts = [0, bytes / 3 + 1, bytes / 2, bytes];
    for cut in cuts.windows(2) {
        blockwork_memory::slice_segments(&whole, cut[0], cut[1] - cut[0], &mut bio.data);
    }
    rig.client.borrow_mut().done.clear();
    rig.batch([bio]);
    rig.complete_all();
    rig.all_succeeded(1);
    let start = (sector * SECTOR) as usize;
    assert!(rig.data_of(0) == data[start..start + bytes], "{nr} at {sector}");
}

#[test]
fn a_read_has_parts_from_their_place_and_parts_that_are_computed() {
    let mut computing = computing();
    for (sector, nr) in [(0, 8), (8, 40), (16, 1), (300, 700), (0, LEG)] {
        expect(&mut computing, sector, nr);
    }
    let rig = &computing.rig;
    assert_eq!(rig.stats.get(NodeId(1), Counter::Computed), 4);
    assert_eq!(computing.asked.load(Relaxed), 1 + 1 + 3 + 4, "in pieces of 256 sectors");
    assert!(computing.cured.lock().unwrap().is_empty());
}

#[test]
fn a_block_that_a_leg_refuses_is_computed_without_it_and_others_with_it() {
    let mut computing = computing();
    // The sum in one place, and what is twice the second in another: never both in one block.
    computing.rig.device.lock().unwrap().bad = vec![2 * LEG + 130, 3 * LEG + 200];
    expect(&mut computing, 100, 150);
    let cured = computing.cured.lock().unwrap().clone();
    let places: Vec<_> =
        cured.iter().map(|failure| (failure.below, failure.span.sector.0, failure.span.nr.0)).collect();
    // Blocks of eight sectors, from where the read begins.
    assert_eq!(places, [(NodeId(4), 124, 8)]);
}

#[test]
fn what_cannot_be_computed_fails_and_nothing_else_does() {
    let mut computing = computing();
    computing.rig.device.lock().unwrap().bad = vec![LEG + 500];
    let (good, bad) = (computing.rig.read(100, 8), computing.rig.read(490, 20));
    computing.rig.batch([good, bad]);
    let mut results = computing.rig.results();
    results.sort_by_key(|result| result.0);
    assert_eq!(results, [(0, Ok(())), (1, Err(Errno::EIO))]);
    assert_eq!(computing.rig.stats.get(NodeId(1), Counter::Errors), 1);
    expect(&mut computing, 501, 20);
}

#[test]
fn a_read_that_is_computed_counts_as_under_way_until_it_is_done() {
    let mut computing = computing();
    computing.rig.hold();
    let read = computing.rig.read(100, 8);
    computing.rig.batch([read]);
    assert_eq!(computing.rig.results(), []);
    let held = computing.rig.device.lock().unwrap().held.len();
    assert_eq!(held, 2, "both terms at a time");
    computing.rig.complete_all();
    computing.rig.all_succeeded(1);
}

#[test]
fn terms_of_whatever_factors_are_added_up_by_definition() {
    let term =
        |nth: usize, bytes: usize| -> Vec<u8> { (0..bytes).map(|at| (at * 31 + nth * 77) as u8).collect() };
    let memory = |bytes: &[u8]| {
        let segment = Segment::new(Buffer::new(bytes.len()), 0, bytes.len());
        segment.write_at(0, bytes);
        segment
    };
    // Powers of 2 in a row, as of a second parity; any; the same; the first of none; nothing.
    let some: [&[u8]; 8] = [
        &[1, 2, 4, 8, 16, 32, 64, 128, 0x1d],
        &[4, 2],
        &[0x8e, 3, 200, 0xff],
        &[7, 7, 1],
        &[1, 1],
        &[0, 5],
        &[0],
        &[],
    ];
    for factors in some {
        for bytes in [512, 4096, 16 << 10, (16 << 10) + 512, 40 << 10] {
            let data: Vec<_> = (0..factors.len()).map(|nth| term(nth, bytes)).collect();
            let segments: Vec<_> = data.iter().map(|data| memory(data)).collect();
            let terms: Vec<_> = factors.iter().map(|factor| Gf256(*factor)).zip(&segments).collect();
            let expected: Vec<u8> = (0..bytes)
                .map(|at| {
                    data.iter()
                        .zip(factors)
                        .fold(0, |sum, (data, factor)| sum ^ (Gf256(*factor) * Gf256(data[at])).0)
                })
                .collect();
            // Into other memory, and into that of a term.
            for sum in
                [memory(&vec![0xee; bytes]), segments.last().unwrap_or(&memory(&vec![1; bytes])).clone()]
            {
                add_times(&terms, &sum);
                let mut found = vec![0; bytes];
                sum.read_at(0, &mut found);
                assert!(found == expected, "{factors:?}, {bytes} bytes");
            }
        }
    }
}

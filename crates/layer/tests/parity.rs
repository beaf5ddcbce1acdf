//! What an array with parity computes where a member is missing or cannot be read, against rows whose parities were made by their definition.

use std::ops::Range;
use std::sync::Arc;

use blockwork_engine::*;
use blockwork_format::md::{Level, ParityLayout};
use blockwork_layer::md::{Array, ArrayConfig, ArrayError, Geometry, MemberConfig};

const CHUNK: u64 = 8;
const ROWS: u64 = 12;
const SIZE: u64 = CHUNK * ROWS;
/// Where the data of member 0 begin; of each further one, one block later.
const START: u64 = 16;
/// Sectors of each member where the parity may not fit.
const STALE: Range<u64> = SIZE - 4..SIZE;

/// A member's data: of each sector, one byte stands for all.
type Bytes = Vec<u8>;

/// The members of an array of that layout, and what the array holds.
fn written(layout: &ParityLayout) -> (Vec<Bytes>, Bytes) {
    let mut members = vec![vec![0; SIZE as usize]; usize::from(layout.disks())];
    let mut data = Vec::new();
    let mut seed = 7_u32;
    for row in 0..ROWS {
        for nth in 0..layout.data_disks() {
            for within in 0..CHUNK {
                seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let byte = (seed >> 24) as u8;
                members[usize::from(layout.member(row, nth))][(row * CHUNK + within) as usize] = byte;
                data.push(byte);
            }
        }
        let (p, q) = layout.parity(row);
        for at in (row * CHUNK..(row + 1) * CHUNK).map(|at| at as usize) {
            let sum = |weight: &dyn Fn(u16) -> u32| {
                (0..layout.data_disks()).map(|nth| layout.member(row, nth)).fold(0, |sum, member| {
                    let byte = members[usize::from(member)][at];
                    sum ^ (0..weight(member))
                        .fold(byte, |byte, _| byte << 1 ^ if byte & 0x80 != 0 { 0x1d } else { 0 })
                })
            };
            let parities = (sum(&|_| 0), sum(&|member| layout.exponent(row, member).into()));
            members[usize::from(p)][at] = parities.0;
            if let Some(q) = q {
                members[usize::from(q)][at] = parities.1;
            }
        }
    }
    (members, data)
}

fn member(nth: u16) -> MemberConfig {
    let start = START + 8 * u64::from(nth);
    let leaf = LeafLayer::new(LeafId(nth), NodeId(nth), Sectors(start + SIZE), Limits::default());
    MemberConfig {
        name: format!("member {nth}"),
        layer: Arc::new(leaf),
        data_start: Sector(start),
        recovered: None,
        write_mostly: false,
        bad: Vec::new(),
    }
}

/// An array of which some members are another way than usual.
fn array(
    layout: &ParityLayout,
    alter: impl Fn(u16, MemberConfig) -> Option<MemberConfig>,
) -> Result<Arc<Array>, ArrayError> {
    let config = ArrayConfig {
        name: "md/odd".to_owned(),
        geometry: Geometry::parity(*layout, Sectors(CHUNK), Sectors(SIZE)).unwrap(),
        members: (0..layout.disks()).map(|nth| alter(nth, member(nth))).collect(),
        resync_from: Some(Sector(STALE.start)),
        intent: None,
        record: None,
    };
    Array::new(NodeId(100), config)
}

fn span(sector: u64, nr: u64) -> Span {
    Span { op: Op::Read, flags: Flags::NONE, sector: Sector(sector), nr: Sectors(nr), at: Sectors::ZERO }
}

fn resolve(array: &Array, sector: u64, nr: u64) -> Vec<Extent> {
    let (mut out, counters, mut tracer) = (Vec::new(), CounterTable::new(101), Tracer::default());
    array.resolve(span(sector, nr), &mut Resolver::new(&mut out, &counters, &mut tracer)).unwrap();
    out
}

/// What is read of the whole array, sector by sector, without asking those in `without`: none where it fails.
fn read(array: &Array, members: &[Bytes], without: &[NodeId]) -> Vec<Option<u8>> {
    let of_leaf = |node: u16, sector: Sector| {
        members[usize::from(node)][(sector.0 - START - 8 * u64::from(node)) as usize]
    };
    let mut all = Vec::new();
    for Extent { target, span: piece } in resolve(array, 0, array.sectors().0) {
        for n in 0..piece.nr.0 {
            all.push(match target {
                Target::Leaf(leaf) if without.contains(&NodeId(leaf.0)) => None,
                Target::Leaf(leaf) => Some(of_leaf(leaf.0, piece.sector + Sectors(n))),
                Target::Sum(_) => array.terms(span(piece.sector.0 + n, 1), without).ok().map(|terms| {
                    terms.iter().fold(0, |sum, Term { below, sector, factor }| {
                        assert!(!without.contains(&below.node()), "nobody is asked who has refused it");
                        sum ^ (*factor * Gf256(of_leaf(below.node().0, *sector))).0
                    })
                }),
                _ => None,
            });
        }
    }
    all
}

fn layouts() -> impl Iterator<Item = ParityLayout> {
    let levels = [Level::Raid4, Level::Raid5, Level::Raid6].into_iter();
    levels.flat_map(|level| {
        (0..21)
            .flat_map(move |number| (2..8).filter_map(move |disks| ParityLayout::new(level, number, disks)))
    })
}

/// What an array gives where that is the data, and nothing where the parity may not fit them.
fn but_for_stale(data: &[u8], layout: &ParityLayout, is_missing: impl Fn(u16) -> bool) -> Vec<Option<u8>> {
    let of = |(at, byte): (usize, &u8)| {
        let (row, rest) = (
            at as u64 / CHUNK / u64::from(layout.data_disks()),
            at as u64 / CHUNK % u64::from(layout.data_disks()),
        );
        let on_member = row * CHUNK + at as u64 % CHUNK;
        let is_stale = STALE.contains(&on_member);
        (!is_stale || !is_missing(layout.member(row, rest as u16))).then_some(*byte)
    };
    data.iter().enumerate().map(of).collect()
}

#[test]
fn what_is_missing_is_computed_in_every_layout_whichever_members_it_is() {
    for layout in layouts() {
        let (members, data) = written(&layout);
        let parities = layout.disks() - layout.data_disks();
        for one in 0..layout.disks() {
            for other in one..layout.disks() {
                let is_missing = |nth: u16| nth == one || nth == other;
                let array = array(&layout, |nth, config| (!is_missing(nth)).then_some(config));
                if one != other && parities < 2 {
                    let error = array.unwrap_err();
                    let expected = [one, other];
                    assert!(
                        matches!(&error, ArrayError::Incomplete { missing, .. } if *missing == expected),
                        "{error}"
                    );
                    continue;
                }
                let found = read(&array.unwrap(), &members, &[]);
                assert!(
                    found == but_for_stale(&data, &layout, is_missing),
                    "{layout} of {} without {one} and {other}",
                    layout.disks()
                );
            }
        }
    }
}

#[test]
fn of_two_members_that_lack_other_places_each_has_what_the_other_lacks() {
    let layout = ParityLayout::new(Level::Raid5, 2, 4).unwrap();
    let (members, data) = written(&layout);
    let listed = |sector, nr| vec![(Sector(sector), Sectors(nr))];
    let array = array(&layout, |nth, config| {
        Some(match nth {
            0 => MemberConfig { bad: listed(3, 20), ..config },
            1 => MemberConfig { bad: listed(23, 9), ..config },
            2 => MemberConfig { recovered: Some(Sector(60)), ..config },
            _ => config,
        })
    })
    .unwrap();
    assert!(read(&array, &members, &[]) == but_for_stale(&data, &layout, |nth| nth == 2));
    // In one place too many of them lack it.
    let array = self::array(&layout, |nth, config| {
        (nth != 3).then(|| MemberConfig { bad: if nth == 0 { listed(3, 2) } else { Vec::new() }, ..config })
    });
    let found = read(&array.unwrap(), &members, &[]);
    let lost = found.iter().filter(|byte| byte.is_none()).count();
    // Sectors 3 and 4 of the members are in row 0, whose parity is on the missing one: what is gone is the data of member 0.
    assert_eq!(lost, 2 + stale_on(&layout, 3));
}

/// Data of a member where the parity may not fit.
fn stale_on(layout: &ParityLayout, member: u16) -> usize {
    let (_, data) = written(layout);
    but_for_stale(&data, layout, |nth| nth == member).iter().filter(|byte| byte.is_none()).count()
}

#[test]
fn who_refuses_a_read_is_not_asked_again_where_others_have_it_and_is_where_nobody_has() {
    let layout = ParityLayout::new(Level::Raid6, 2, 5).unwrap();
    let (members, data) = written(&layout);
    let array = array(&layout, |_, config| Some(config)).unwrap();
    let refuse = |nth: u16, sector: u64, nr| {
        let below = NodeId(nth);
        let span = span(START + 8 * u64::from(nth) + sector, nr);
        array.cure(&Failure { op: Op::Read, below, span, errno: Errno::EIO })
    };
    // Data of row 0, left symmetric: Q on the first member, P on the last.
    assert_eq!(refuse(1, 0, 8), Cure::Again);
    assert!(matches!(resolve(&array, 0, 8)[..], [Extent { target: Target::Sum(_), .. }]));
    assert_eq!(array.terms(span(0, 8), &[]).unwrap().len(), 3, "two others and P");
    assert!(read(&array, &members, &[]) == data.iter().map(|byte| Some(*byte)).collect::<Vec<_>>());
    assert_eq!(refuse(2, 0, 8), Cure::Again);
    assert_eq!(refuse(2, 0, 8), Cure::Again, "somebody has noted it before");
    assert!(read(&array, &members, &[]) == data.iter().map(|byte| Some(*byte)).collect::<Vec<_>>());
    // Of a third one nothing can be computed, unless those give it which have refused it.
    assert_eq!(refuse(3, 0, 8), Cure::Again, "what others may have after all");
    let terms = |without: &[u16]| {
        let without: Vec<_> = without.iter().map(|nth| NodeId(*nth)).collect();
        array
            .terms(span(0, 8), &without)
            .map(|terms| terms.iter().map(|term| term.below.node().0).collect::<Vec<_>>())
    };
    assert_eq!(terms(&[]), Ok(vec![1]), "itself");
    assert_eq!(terms(&[1]), Ok(vec![2, 3, 4]));
    assert_eq!(terms(&[1, 4]), Ok(vec![2, 3, 0]), "by Q");
    assert_eq!(terms(&[1, 3]), Ok(vec![2, 4, 0]), "by both");
    assert_eq!(terms(&[1, 2, 3]), Err(Errno::EIO));
    // Of what was not the disk's fault, and of writes, nothing is noted.
    let failure = Failure { op: Op::Read, below: NodeId(0), span: span(START, 8), errno: Errno::EFAULT };
    assert_eq!(array.cure(&failure), Cure::None);
    assert_eq!(array.cure(&Failure { op: Op::Flush, errno: Errno::EIO, ..failure }), Cure::None);
}

#[test]
fn what_can_not_be_computed_is_not_noted() {
    let layout = ParityLayout::new(Level::Raid5, 5, 3).unwrap();
    let array = array(&layout, |nth, config| (nth != 0).then_some(config)).unwrap();
    let failure = Failure { op: Op::Read, below: NodeId(1), span: span(START + 8, 8), errno: Errno::EIO };
    assert_eq!(array.cure(&failure), Cure::None);
    assert!(matches!(resolve(&array, 8, 8)[..], [Extent { target: Target::Leaf(LeafId(1)), .. }]));
}

#[test]
fn who_refuses_too_many_places_is_read_last() {
    let size = 2048;
    let disk = |nth: u16| {
        let layer = Arc::new(LeafLayer::new(LeafId(nth), NodeId(nth), Sectors(size), Limits::default()));
        Some(MemberConfig { layer, data_start: Sector(0), ..member(nth) })
    };
    let layout = ParityLayout::new(Level::Raid5, 5, 3).unwrap();
    let config = ArrayConfig {
        name: "md/odd".to_owned(),
        geometry: Geometry::parity(layout, Sectors(CHUNK), Sectors(size)).unwrap(),
        members: (0..3).map(disk).collect(),
        resync_from: None,
        intent: None,
        record: None,
    };
    let array = Array::new(NodeId(100), config).unwrap();
    let of_it = || {
        let extents = resolve(&array, 0, array.sectors().0);
        let of_it = extents.iter().filter(|it| it.target == Target::Leaf(LeafId(1)));
        of_it.map(|extent| extent.span.nr.0).sum::<u64>()
    };
    let refuse = |sector| {
        let failure = Failure { op: Op::Read, below: NodeId(1), span: span(sector, 1), errno: Errno::EIO };
        assert_eq!(array.cure(&failure), Cure::Again);
    };
    (0..512).for_each(|nth| refuse(2 * nth));
    assert_eq!(of_it(), size - 512);
    refuse(1500);
    assert_eq!(of_it(), 0);
    let terms = array.terms(span(8, 8), &[NodeId(0)]).unwrap();
    assert_eq!(terms.iter().map(|term| term.below.node()).collect::<Vec<_>>(), [NodeId(1)]);
}

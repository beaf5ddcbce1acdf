//! The geometry of md arrays against the slow definitions that anyone can verify: chunk by chunk, one after the other.
//!
//! The definition of RAID10 is the kernel's (`drivers/md/raid10.c`), that of RAID0 too (`raid0.c`); the tables are those of md(4).

use std::collections::{BTreeMap, BTreeSet};

use blockwork_engine::{Sector, Sectors};
use blockwork_format::md::raid0::Raid0Layout;
use blockwork_format::md::{FarSets, Raid10Layout};
use blockwork_layer::md::{Geometry, GeometryError, Place, Places};
use proptest::prelude::*;

/// Where a chunk of a RAID10 lies: (disk, row) of each copy, in order.
#[derive(Clone, Copy, Debug)]
struct Raid10ByHand {
    disks: u64,
    near: u64,
    far: u64,
    offset: bool,
    sets: FarSets,
    /// Chunks that a member has room for.
    member_chunks: u64,
}

impl Raid10ByHand {
    fn layout(&self) -> Option<Raid10Layout> {
        let (near, far) = (u8::try_from(self.near).unwrap(), u8::try_from(self.far).unwrap());
        Raid10Layout::new(near, far, self.offset, self.sets, u32::try_from(self.disks).unwrap()).ok()
    }

    fn chunks(&self) -> u64 {
        self.member_chunks / self.far * self.disks / self.near
    }

    fn rows(&self) -> u64 {
        (self.chunks() * self.near * self.far).div_ceil(self.disks)
    }

    fn copies(&self, chunk: u64) -> Vec<(u64, u64)> {
        let (n, mut out) = (self.disks, Vec::new());
        let set_disks = match self.sets {
            FarSets::One => n,
            FarSets::Quotient => n / self.far,
            FarSets::Copies => self.far * self.near,
        };
        let last_set = (n / set_disks - 1) * set_disks;
        let stride = if self.offset { 1 } else { self.rows() / self.far };
        let (mut row, mut disk) = (chunk * self.near / n, chunk * self.near % n);
        if self.offset {
            row *= self.far;
        }
        for _ in 0..self.near {
            let (mut d, mut r) = (disk, row);
            out.push((d, r));
            for _ in 1..self.far {
                let set = d / set_disks;
                d += self.near;
                if n % set_disks != 0 && d > last_set {
                    d = last_set + (d - last_set) % (set_disks + n % set_disks);
                } else {
                    d = set * set_disks + d % set_disks;
                }
                r += stride;
                out.push((d, r));
            }
            disk += 1;
            if disk == n {
                (disk, row) = (0, row + 1);
            }
        }
        out
    }

    fn overlaps(&self) -> bool {
        let mut seen = BTreeSet::new();
        (0..self.chunks()).flat_map(|chunk| self.copies(chunk)).any(|place| !seen.insert(place))
    }

    fn geometry(&self, chunk: u64, left_over: u64) -> Option<Result<Geometry, GeometryError>> {
        let member = Sectors(self.member_chunks * chunk + left_over);
        Some(Geometry::raid10(self.layout()?, Sectors(chunk), member))
    }
}

/// Layouts of up to 12 copies, on as many disks or some more; a few of them cannot be.
fn raid10_by_hand() -> impl Strategy<Value = Raid10ByHand> {
    let sets = prop_oneof![Just(FarSets::One), Just(FarSets::Quotient), Just(FarSets::Copies)];
    let copies =
        (1u64..5, 1u64..5).prop_filter("2 to 12 copies", |(near, far)| (2..=12).contains(&(near * far)));
    (copies, 0u64..7, any::<bool>(), sets, 1u64..10).prop_map(|((near, far), more, offset, sets, part)| {
        Raid10ByHand { disks: near * far + more, near, far, offset, sets, member_chunks: part * far }
    })
}

fn place((disk, row): (u64, u64), chunk: u64, within: u64) -> Place {
    Place { member: u16::try_from(disk).unwrap(), sector: Sector(row * chunk + within) }
}

fn places(geometry: &Geometry, sector: u64) -> Vec<Place> {
    let mut out = Places::new();
    geometry.places(Sector(sector), &mut out);
    out.to_vec()
}

fn ranges(geometry: &Geometry, sector: u64, nr: u64) -> Vec<(Place, u64)> {
    let mut out = Vec::new();
    geometry.ranges(Sector(sector), Sectors(nr), &mut |place, nr| out.push((place, nr.0)));
    out
}

/// `from` and `nr` of a range that lies within `size`, from two parts of it; not always aligned.
fn range_of(size: u64, from: f64, len: f64) -> (u64, u64) {
    let from = (((size - 1) as f64) * from) as u64;
    (from, 1 + ((size - from - 1) as f64 * len) as u64)
}

/// The ranges of `sector..+nr`, sector by sector, in the order and as whole as they can be.
fn ranges_by_hand(geometry: &Geometry, sector: u64, nr: u64) -> Vec<(Place, u64)> {
    let mut all: Vec<Place> = (sector..sector + nr).flat_map(|at| places(geometry, at)).collect();
    all.sort();
    let mut out: Vec<(Place, u64)> = Vec::new();
    for place in all {
        match out.last_mut() {
            Some((first, nr)) if first.member == place.member && first.sector.0 + *nr == place.sector.0 => {
                *nr += 1
            }
            _ => out.push((place, 1)),
        }
    }
    out
}

/// Most ranges that one member gets.
fn most_on_a_member(ranges: &[(Place, u64)]) -> usize {
    let mut count = BTreeMap::new();
    ranges.iter().for_each(|(place, _)| *count.entry(place.member).or_insert(0) += 1);
    count.into_values().max().unwrap_or(0)
}

/// What holds for every geometry, by its own `places`.
fn check_itself(geometry: &Geometry) {
    let mut seen = BTreeSet::new();
    let mut sector = 0;
    while sector < geometry.sectors().0 {
        let left = geometry.sectors().0 - sector;
        let (here, room) = (places(geometry, sector), geometry.room(Sector(sector)).0.min(left));
        let preferred = geometry.preferred_copy(Sector(sector));
        assert_eq!(here.len(), usize::from(geometry.copies()));
        assert!(room > 0, "no room at {sector}");
        assert!(preferred < here.len());
        for skip in 0..room {
            let moved = |place: &Place| Place { sector: place.sector + Sectors(skip), ..*place };
            let expected: Vec<Place> = here.iter().map(moved).collect();
            assert_eq!(places(geometry, sector + skip), expected, "{skip} of {room} from {sector}");
            if skip < geometry.read_room(Sector(sector)).0 {
                assert_eq!(geometry.preferred_copy(Sector(sector + skip)), preferred);
            }
            for (copy, place) in expected.iter().enumerate() {
                assert_eq!(geometry.place(Sector(sector + skip), copy), *place);
                assert_eq!(geometry.to_array(*place), Some(Sector(sector + skip)), "{place:?}");
                assert!(place.sector.0 < geometry.sectors_on_member(place.member).0, "{place:?}");
                assert!(seen.insert(*place), "{place:?} holds two sectors");
            }
        }
        sector += room;
    }
    for member in 0..geometry.members() + 1 {
        for at in 0..geometry.sectors_on_member(member).0 + 9 {
            let place = Place { member, sector: Sector(at) };
            assert_eq!(geometry.to_array(place).is_some(), seen.contains(&place), "{place:?}");
        }
    }
}

proptest! {
    #[test]
    fn a_linear_array_is_its_members_one_behind_the_other(
        sizes in prop::collection::vec(1u64..40, 1..7), chunk in 0u64..6,
        (from, len) in (0.0..1.0, 0.0..1.0),
    ) {
        let used: Vec<u64> = sizes.iter().map(|size| size.checked_div(chunk).map_or(*size, |whole| whole * chunk)).collect();
        let members: Vec<Sectors> = sizes.iter().copied().map(Sectors).collect();
        let geometry = Geometry::linear(Sectors(chunk), &members);
        if let Some(role) = used.iter().position(|used| *used == 0) {
            prop_assert_eq!(geometry.unwrap_err(), GeometryError::Empty { role: role as u16 });
            return Ok(());
        }
        let geometry = geometry.unwrap();
        check_itself(&geometry);
        let by_hand = (0..).zip(&used).flat_map(|(member, used)| (0..*used).map(move |sector| Place { member, sector: Sector(sector) }));
        let found: Vec<_> = (0..geometry.sectors().0).flat_map(|sector| places(&geometry, sector)).collect();
        prop_assert_eq!(found, by_hand.collect::<Vec<_>>());
        let (from, nr) = range_of(geometry.sectors().0, from, len);
        prop_assert_eq!(ranges(&geometry, from, nr), ranges_by_hand(&geometry, from, nr));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn a_raid10_has_every_copy_where_the_kernel_has_it(
        by_hand in raid10_by_hand(), chunk in prop_oneof![Just(8u64), Just(16)], left_over in 0u64..8,
    ) {
        let Some(Ok(geometry)) = by_hand.geometry(chunk, left_over) else { return Ok(()) };
        prop_assert_eq!(geometry.sectors(), Sectors(by_hand.chunks() * chunk));
        prop_assert_eq!(geometry.sectors_on_member(0), Sectors(by_hand.rows() * chunk));
        prop_assert_eq!(u64::from(geometry.copies()), by_hand.near * by_hand.far);
        for number in 0..by_hand.chunks() {
            let expected: Vec<Place> =
                by_hand.copies(number).into_iter().map(|copy| place(copy, chunk, 3)).collect();
            prop_assert_eq!(places(&geometry, number * chunk + 3), expected, "chunk {}", number);
        }
        check_itself(&geometry);
    }

    #[test]
    fn a_discard_on_a_raid10_is_as_few_ranges_as_there_can_be(
        by_hand in raid10_by_hand(), from in 0.0f64..1.0, len in 0.0f64..1.0, whole: bool,
    ) {
        const CHUNK: u64 = 8;
        let Some(Ok(geometry)) = by_hand.geometry(CHUNK, 0) else { return Ok(()) };
        let (from, nr) = if whole {
            let (from, nr) = range_of(by_hand.chunks(), from, len);
            (from * CHUNK, nr * CHUNK)
        } else {
            range_of(geometry.sectors().0, from, len)
        };
        let found = ranges(&geometry, from, nr);
        prop_assert_eq!(&found, &ranges_by_hand(&geometry, from, nr), "{} from {}", nr, from);

        let far = usize::try_from(by_hand.far).unwrap();
        // Of the variant that puts several copies on a member, no better can be said.
        let odd = by_hand.sets == FarSets::Quotient && by_hand.far * by_hand.near * by_hand.far > by_hand.disks;
        let most = match (by_hand.offset && far > 1, odd) {
            (false, _) => far,
            // A range that begins or ends within a chunk leaves a gap beside it where Linux would leave one too.
            (true, false) => if whole { 3 } else { 5 },
            (true, true) => 2 * far + 1,
        };
        prop_assert!(most_on_a_member(&found) <= most, "{:?}", found);
    }

    #[test]
    fn an_array_has_all_data_as_long_as_a_copy_of_every_chunk_is_there(
        by_hand in raid10_by_hand(), present in any::<u32>(),
    ) {
        let Some(Ok(geometry)) = by_hand.geometry(8, 0) else { return Ok(()) };
        let expected = (0..by_hand.chunks())
            .all(|chunk| by_hand.copies(chunk).iter().any(|(disk, _)| (present >> disk) & 1 == 1));
        prop_assert_eq!(geometry.has_all_data(&|member| (present >> member) & 1 == 1), expected);
    }

    #[test]
    fn a_raid0_has_every_chunk_where_the_kernel_has_it(
        chunk in 1u64..20, members in prop::collection::vec(20u64..200, 1..6), original: bool,
        from in 0.0f64..1.0, len in 0.0f64..1.0,
    ) {
        let layout = if original { Raid0Layout::Original } else { Raid0Layout::Alternate };
        let sizes: Vec<Sectors> = members.iter().map(|sectors| Sectors(*sectors)).collect();
        let geometry = Geometry::raid0(Sectors(chunk), &sizes, layout).unwrap();
        let by_hand = raid0_by_hand(chunk, &members, original);
        let found: Vec<Place> =
            (0..geometry.sectors().0 / chunk).map(|number| places(&geometry, number * chunk)[0]).collect();
        // It may end before its last chunks.
        let masked = members.iter().map(|sectors| (sectors / chunk * chunk) & !(chunk - 1));
        prop_assert_eq!(geometry.sectors().0, masked.sum());
        prop_assert_eq!(&found, &by_hand[..found.len()]);
        check_itself(&geometry);

        let (from, nr) = range_of(geometry.sectors().0, from, len);
        let found = ranges(&geometry, from, nr);
        let mut sectors: Vec<Place> = found.iter()
            .flat_map(|(place, nr)| (0..*nr).map(|skip| Place { sector: place.sector + Sectors(skip), ..*place }))
            .collect();
        sectors.sort();
        let mut expected: Vec<Place> = (from..from + nr).flat_map(|at| places(&geometry, at)).collect();
        expected.sort();
        prop_assert_eq!(sectors, expected);
        let zones = members.iter().map(|sectors| sectors / chunk).collect::<BTreeSet<_>>().len();
        prop_assert!(most_on_a_member(&found) <= zones);
    }
}

/// Where the chunks of a RAID0 lie, in order: each goes to the next member that has room, in turn, as `raid0.c` counts.
fn raid0_by_hand(chunk: u64, members: &[u64], original: bool) -> Vec<Place> {
    let chunks_of = |member: &u64| member / chunk;
    let mut ends: Vec<u64> = members.iter().map(chunks_of).collect();
    ends.sort();
    ends.dedup();
    let mut out = Vec::new();
    let mut zone_row = 0;
    for end in ends {
        let in_zone: Vec<u64> =
            (0..).zip(members).filter(|(_, member)| chunks_of(member) >= end).map(|(role, _)| role).collect();
        let width = in_zone.len() as u64;
        let zone_chunk = out.len() as u64;
        for number in 0..(end - zone_row) * width {
            let turn = if original { zone_chunk + number } else { number };
            let disk = in_zone[usize::try_from(turn % width).unwrap()];
            out.push(place((disk, zone_row + number / width), chunk, 0));
        }
        zone_row = end;
    }
    out
}

#[test]
fn a_layout_is_refused_where_chunks_would_share_a_place_and_only_there() {
    let mut refused = 0;
    for disks in 2..13 {
        for (near, far) in (1..6).flat_map(|near| (1..6).map(move |far| (near, far))) {
            for (offset, sets) in [FarSets::One, FarSets::Quotient, FarSets::Copies]
                .into_iter()
                .flat_map(|sets| [(false, sets), (true, sets)])
            {
                let by_hand = Raid10ByHand { disks, near, far, offset, sets, member_chunks: 5 * near * far };
                if (2..=disks).contains(&(near * far)) {
                    let accepted = matches!(by_hand.geometry(8, 0), Some(Ok(_)));
                    assert_eq!(accepted, !by_hand.overlaps(), "{by_hand:?}");
                    refused += u32::from(!accepted);
                }
            }
        }
    }
    assert!(refused > 0);
}

/// The rows of an array, as md(4) draws them: the chunk on each disk.
fn drawn(word: u32, disks: u32, member_chunks: u64, rows: impl Iterator<Item = u64>) -> Vec<Vec<u64>> {
    let layout = Raid10Layout::decode(word, disks).unwrap();
    let geometry = Geometry::raid10(layout, Sectors(8), Sectors(8 * member_chunks)).unwrap();
    let chunk = |member, row| geometry.to_array(Place { member, sector: Sector(row * 8) }).map(|at| at.0 / 8);
    rows.map(|row| (0..geometry.members()).filter_map(|member| chunk(member, row)).collect()).collect()
}

#[test]
fn the_tables_of_md_4() {
    assert_eq!(drawn(0x102, 4, 2, 0..2), [[0, 0, 1, 1], [2, 2, 3, 3]]);
    assert_eq!(drawn(0x102, 5, 2, 0..2), [[0, 0, 1, 1, 2], [2, 3, 3, 4, 4]]);
    assert_eq!(drawn(0x103, 5, 3, 0..2), [[0, 0, 0, 1, 1], [1, 2, 2, 2, 3]]);
    assert_eq!(drawn(0x201, 4, 6, [0, 3].into_iter()), [[0, 1, 2, 3], [3, 0, 1, 2]]);
    assert_eq!(drawn(0x201, 5, 6, [0, 3].into_iter()), [[0, 1, 2, 3, 4], [4, 0, 1, 2, 3]]);
    assert_eq!(drawn(0x1_0201, 4, 4, 0..4), [[0, 1, 2, 3], [3, 0, 1, 2], [4, 5, 6, 7], [7, 4, 5, 6]]);
    assert_eq!(drawn(0x4_0201, 4, 6, [0, 3].into_iter()), [[0, 1, 2, 3], [1, 0, 3, 2]]);
    assert_eq!(drawn(0x4_0201, 5, 6, [3].into_iter()), [[1, 0, 4, 2, 3]]);
    assert_eq!(drawn(0x4_0201, 6, 6, [3].into_iter()), [[1, 0, 3, 2, 5, 4]]);
    assert_eq!(drawn(0x5_0201, 4, 2, 0..2), [[0, 1, 2, 3], [1, 0, 3, 2]]);
    assert_eq!(drawn(0x202, 4, 6, [0, 3].into_iter()), [[0, 0, 1, 1], [1, 1, 0, 0]]);
}

#[test]
fn a_discard_of_the_whole_array_is_a_range_a_member() {
    // 2^50 sectors: were anything done per chunk, this would not end.
    for (word, disks, chunk, ranges_a_member) in
        [(0x102, 4, 1024, 1), (0x103, 5, 8, 1), (0x201, 4, 8, 1), (0x301, 7, 1024, 1), (0x1_0201, 5, 8, 1)]
    {
        let layout = Raid10Layout::decode(word, disks).unwrap();
        let geometry = Geometry::raid10(layout, Sectors(chunk), Sectors(1 << 50)).unwrap();
        let all = ranges(&geometry, 0, geometry.sectors().0);
        assert_eq!(all.len(), ranges_a_member * usize::from(geometry.members()), "{word:#x}");
        let inner = ranges(&geometry, 3, geometry.sectors().0 - 5);
        assert!(most_on_a_member(&inner) <= 3, "{word:#x}: {inner:?}");
    }
    let members = [Sectors(1 << 50), Sectors(3 << 49)];
    let raid0 = Geometry::raid0(Sectors(3), &members, Raid0Layout::Alternate).unwrap();
    assert_eq!(ranges(&raid0, 1, raid0.sectors().0 - 1).len(), 3);
}

#[test]
fn mirrors_all_hold_the_array_and_take_turns_with_reads() {
    let geometry = Geometry::raid1(3, Sectors(40_000));
    check_itself(&geometry);
    assert_eq!(ranges(&geometry, 5, 9), (0..3).map(|disk| (place((disk, 0), 1, 5), 9)).collect::<Vec<_>>());
    let turns: Vec<usize> = (0..4).map(|n| geometry.preferred_copy(Sector(n * 8192))).collect();
    assert_eq!(turns, [0, 1, 2, 0]);
    assert_eq!(geometry.read_room(Sector(8191)), Sectors(1));
    assert_eq!(
        geometry.read_room(Sector(39_000)),
        Sectors(40_960 - 39_000),
        "behind the end, as its last block"
    );
    assert!(geometry.has_all_data(&|member| member == 2));
    assert!(!geometry.has_all_data(&|_| false));
}

/// How many sectors of each member a reader of `sectors` from the start reads.
fn read_from_each(geometry: &Geometry, sectors: u64) -> Vec<u64> {
    let mut read = vec![0; usize::from(geometry.members())];
    let mut sector = 0;
    while sector < sectors {
        let room = geometry.read_room(Sector(sector)).0.min(sectors - sector);
        let place = geometry.place(Sector(sector), geometry.preferred_copy(Sector(sector)));
        read[usize::from(place.member)] += room;
        sector += room;
    }
    read
}

#[test]
fn sequential_reads_take_the_same_from_each_member() {
    for word in [0x102, 0x103, 0x201, 0x1_0201] {
        for (disks, chunk) in (3..8).flat_map(|disks| [(disks, 8), (disks, 128), (disks, 1024)]) {
            let layout = Raid10Layout::decode(word, disks).unwrap();
            let geometry = Geometry::raid10(layout, Sectors(chunk), Sectors(1 << 22)).unwrap();
            // All near copies in turn, over whole periods of the layout.
            let round = u64::from(disks) * layout.copies() as u64 * chunk.max(8192);
            let read = read_from_each(&geometry, 8 * round);
            assert_eq!(read, vec![8 * round / u64::from(disks); disks as usize], "{word:#x} {disks} {chunk}");
        }
    }
}

#[test]
fn sixteen_mib_read_in_order_keep_four_members_busy() {
    let layout = Raid10Layout::decode(0x102, 4).unwrap();
    let geometry = Geometry::raid10(layout, Sectors(128), Sectors(1 << 20)).unwrap();
    assert_eq!(read_from_each(&geometry, 32_768), [8192; 4]);
}

#[test]
fn what_is_no_array_is_an_error() {
    let layout = |word, disks| Raid10Layout::decode(word, disks).unwrap();
    let raid10 = |word, disks, chunk, member| {
        Geometry::raid10(layout(word, disks), Sectors(chunk), Sectors(member)).unwrap_err()
    };
    assert_eq!(raid10(0x102, 1921, 8, 8), GeometryError::Members(1921));
    assert_eq!(raid10(0x102, 70_000, 8, 8), GeometryError::Members(70_000));
    for chunk in [0, 4, 12, u64::MAX] {
        assert!(matches!(raid10(0x102, 4, chunk, 1 << 20), GeometryError::Chunk { .. }), "{chunk}");
    }
    assert!(matches!(raid10(0x102, 4, 1 << 40, 1 << 50), GeometryError::Chunk { .. }));
    assert!(matches!(raid10(0x201, 4, 8, 15), GeometryError::Small { .. }));
    assert_eq!(raid10(0x102, 4, 8, u64::MAX), GeometryError::Size(Sectors(u64::MAX)));
    assert!(matches!(raid10(0x102, 40, 8, 1 << 54), GeometryError::Size(_)));
    assert_eq!(raid10(0x4_0202, 9, 8, 800), GeometryError::Overlap { layout: 0x4_0202, members: 9 });
    let raid0 = |chunk, members: &[Sectors]| Geometry::raid0(Sectors(chunk), members, Raid0Layout::Original);
    assert!(raid0(8, &[]).is_err());
    assert!(raid0(0, &[Sectors(8)]).is_err());
    assert!(raid0(1 << 40, &[Sectors(8)]).is_err());
    assert!(raid0(8, &[Sectors(1 << 54); 2]).is_err());
    assert!(raid0(8, &[Sectors(8), Sectors(7)]).is_err());
}

//! Superblocks and metadata with good checksums that say anything: nothing panics, and what is assembled can be read
//! from its first sector to its last, or says that it cannot.

mod lab;

use blockwork_engine::{Flags, Op, Resolver, Sector, Sectors, Span, Tracer, Volume};
use blockwork_format::md::v1::{Features, Superblock};
use blockwork_format::md::{Level, Role};
use blockwork_volume::Assembly;
use lab::{Group, HIDDEN, Lab, SEEN, Set, commit, linear, lv, put_superblock, pv};
use proptest::prelude::*;

/// Resolves reads at both ends of every volume that can be served, and in its middle.
fn read_everything(assembly: &mut Assembly) {
    let (chosen, _) = assembly.choose_all();
    let stats = assembly.stats();
    let counters = stats.worker();
    for chosen in &chosen {
        let volume: &Volume = &chosen.volume;
        let sectors = volume.sectors().0;
        let nr = sectors.min(64);
        for start in [0, sectors / 2, sectors - nr] {
            let nr = Sectors(nr.min(sectors - start));
            let span =
                Span { op: Op::Read, flags: Flags::NONE, sector: Sector(start), nr, at: Sectors::ZERO };
            let (mut extents, mut tracer) = (Vec::new(), Tracer::default());
            let mut resolver = Resolver::new(&mut extents, &counters, &mut tracer);
            volume.root.resolve(span, &mut resolver).unwrap();
            let covered: u64 = extents.iter().map(|extent| extent.span.nr.0).sum();
            assert_eq!(covered, nr.0, "{} at {start}", volume.name);
        }
    }
}

/// A number that is near to what is believable, or far from it.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![0..20u64, 0..1000u64, (0u32..64).prop_map(|bit| 1 << bit), any::<u64>(), Just(u64::MAX)]
}

fn small(number: u64) -> u32 {
    u32::try_from(number & u64::from(u32::MAX)).expect("32 bits")
}

fn change(superblock: &mut Superblock, field: u8, number: u64) {
    let role = usize::try_from(number % 8).expect("below 8");
    match field {
        0 => superblock.events = superblock.events.saturating_add(number % 4),
        1 => superblock.events = number,
        2 => superblock.dev_number = small(number),
        3 => superblock.roles[role] = Role::from(u16::try_from(number >> 48).expect("16 bits")),
        4 => superblock.roles[role] = [Role::Active(0), Role::Faulty, Role::Spare, Role::Journal][role % 4],
        5 => superblock.raid_disks = small(number),
        6 => superblock.layout = small(number),
        7 => superblock.chunk_sectors = small(number),
        8 => superblock.size = number,
        9 => superblock.data_size = number,
        10 => superblock.data_offset = number,
        11 => superblock.level = Level::from(small(number).cast_signed()),
        12 => superblock.level = [Level::Raid0, Level::Raid1, Level::Raid10, Level::Raid5][role % 4],
        13 => superblock.features = Features(small(number)),
        14 => superblock.recovery_offset = number,
        15 => superblock.resync_offset = number,
        16 => superblock.bitmap_offset = small(number).cast_signed(),
        17 => (superblock.bblog_offset, superblock.bblog_sectors) = (small(number).cast_signed(), 8),
        18 => superblock.set_name.0[role] = number.to_le_bytes()[0],
        _ => superblock.ctime.0 = number,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn superblocks_that_say_anything(
        level in prop_oneof![Just((Level::Raid0, 0)), Just((Level::Raid1, 0)), Just((Level::Raid10, 0x102))],
        changes in proptest::collection::vec((0u16..3, 0u8..20, number()), 0..6), writing: bool,
    ) {
        let lab = Lab::new();
        let set = Set { size: 64, ..Set::new("host:any", level.0, level.1, 3) };
        let disks = set.members(&lab);
        let mut superblocks: Vec<Superblock> = (0..3).map(|place| set.superblock(place)).collect();
        for (place, field, number) in changes {
            change(&mut superblocks[usize::from(place)], field, number);
        }
        for (disk, superblock) in disks.iter().zip(&superblocks) {
            put_superblock(disk, superblock);
        }
        let disks: Vec<_> = disks.iter().collect();
        read_everything(&mut if writing { lab.open_for_writing(&disks) } else { lab.open(&disks) });
    }

    #[test]
    fn metadata_that_says_anything(
        changes in proptest::collection::vec((0usize..60, number()), 0..4), swap in (0usize..14, 0usize..14),
    ) {
        let lab = Lab::new();
        let disks = [pv(&lab, "a", 0, 20), pv(&lab, "b", 1, 20)];
        let stripes = "stripe_count = 2 stripe_size = 8 stripes = [\"pv0\", 4, \"pv1\", 4]";
        let part = "stripe_count = 1 stripes = [\"inner\", 0]";
        let snapshot = "chunk_size = 8 origin = \"top\" cow_store = \"store\"";
        let mirror = "device_count = 2 region_size = 8 raids = [\"m0\", \"i0\", \"m1\", \"i1\"]";
        let leg = |name, id, pv, extent| lv(name, id, HIDDEN, &[("striped", 1, &*linear(pv, extent))]);
        let lvs = vec![
            lv("inner", 1, HIDDEN, &[("striped", 2, &linear(0, 0)), ("striped", 2, &linear(1, 0))]),
            lv("top", 2, SEEN, &[("striped", 4, part), ("striped", 4, stripes), ("zero", 1, "")]),
            lv("store", 3, HIDDEN, &[("striped", 1, &linear(0, 9))]),
            lv("snapshot0", 4, SEEN, &[("snapshot", 1, snapshot)]),
            leg("m0", 5, 0, 10), leg("i0", 6, 0, 11), leg("m1", 7, 1, 10), leg("i1", 8, 1, 11),
            lv("mirror", 9, SEEN, &[("raid1", 1, mirror)]),
        ];
        let group = Group { name: "vg0", id: 'g', seqno: 1, more: "", pvs: &[(0, 20), (1, 20)], lvs };
        let text = mutate(&group.text(), &changes, swap);
        disks.iter().for_each(|disk| commit(disk, &text));
        read_everything(&mut lab.open(&disks.each_ref()));
    }
}

/// Replaces some of the text's numbers, and lets two of its names trade places.
fn mutate(text: &str, changes: &[(usize, u64)], swap: (usize, usize)) -> String {
    const NAMES: [&str; 14] = [
        "inner", "top", "store", "m0", "i0", "m1", "i1", "mirror", "pv0", "pv1", "striped", "raid1",
        "snapshot", "zero",
    ];
    let (one, other) = (format!("\"{}\"", NAMES[swap.0]), format!("\"{}\"", NAMES[swap.1]));
    let mut words: Vec<String> = Vec::new();
    for word in text.split_inclusive([' ', '\n', ',', '[', ']']) {
        let bare = word.trim_end_matches([' ', '\n', ',', '[', ']']);
        let end = &word[bare.len()..];
        words.push(match bare {
            _ if bare == one => format!("{other}{end}"),
            _ if bare == other => format!("{one}{end}"),
            _ => word.to_owned(),
        });
    }
    let is_number = |word: &String| word.trim().trim_end_matches([',', ']']).parse::<u64>().is_ok();
    let numbers: Vec<usize> = (0..words.len()).filter(|at| is_number(&words[*at])).collect();
    for (which, number) in changes {
        let at = numbers[which % numbers.len()];
        let end: String = words[at].chars().skip_while(char::is_ascii_digit).collect();
        words[at] = format!("{}{end}", number & u64::MAX >> 1);
    }
    words.concat()
}

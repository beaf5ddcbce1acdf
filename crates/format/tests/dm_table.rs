//! Tables in dmsetup's syntax: what is taken, what is refused and with which words, and that printing and parsing are
//! each other's inverse.

use blockwork_format::dm_raid::ParityType;
use blockwork_format::table::{
    Below, Device, Persistence, Raid, Raid10Format, RaidKind, Table, Target, TargetKind, parse, reference,
};
use blockwork_format::{ErrorKind, FormatError, Position};
use proptest::prelude::*;

fn below(dev: &str, offset: u64) -> Below {
    Below { dev: dev.into(), offset }
}

fn error(text: &str) -> FormatError {
    parse(text).expect_err(text)
}

#[test]
fn a_table_of_all_targets_is_read_with_comments_and_blank_lines() {
    let text = "# a stack\n\n0 1024 linear /dev/sdb,direct=off 8\n  1024 96 striped 3 16 a 0 b 10 null:10G 0 # three\n\
                1120 8 zero\n\t1128 8 error\r\n1136 64 delay c 8 250\n";
    let table = parse(text).unwrap();
    let [Device { name: None, targets }] = &table.devices[..] else { panic!("{table:?}") };
    let stripes = vec![below("a", 0), below("b", 10), below("null:10G", 0)];
    let kinds = [
        TargetKind::Linear(below("/dev/sdb,direct=off", 8)),
        TargetKind::Striped { chunk: 16, stripes },
        TargetKind::Zero,
        TargetKind::Error,
        TargetKind::Delay { below: below("c", 8), delay_ms: 250 },
    ];
    assert_eq!(targets.iter().map(|t| t.kind.clone()).collect::<Vec<_>>(), kinds);
    assert_eq!(targets.iter().map(|t| t.line_number).collect::<Vec<_>>(), [3, 4, 5, 6, 7]);
    assert_eq!(table.devices[0].sectors(), 1200);
    assert_eq!(
        table.to_string(),
        "0 1024 linear /dev/sdb,direct=off 8\n1024 96 striped 3 16 a 0 b 10 null:10G 0\n1120 8 zero\n1128 8 error\n\
         1136 64 delay c 8 250\n"
    );
}

#[test]
fn several_devices_are_read_as_dmsetup_prints_them_and_may_use_earlier_ones() {
    let text = "vg-a: 0 100 linear 8:16 2048\nvg-a: 100 100 zero\nvg-b: 0 150 linear dm/vg-a,x=y 50\n\
                c: 0 150 linear /dev/mapper/vg-b 0\nd: 0 8 linear /dev/mapper/of-the-host 0\n";
    let table = parse(text).unwrap();
    let shape: Vec<_> = table.devices.iter().map(|d| (d.name.as_deref().unwrap(), d.targets.len())).collect();
    assert_eq!(shape, [("vg-a", 2), ("vg-b", 1), ("c", 1), ("d", 1)]);
    assert_eq!(table.to_string(), text);
    assert_eq!(reference("dm/vg-a,x=y"), Some("vg-a"));
    assert_eq!((reference("/dev/mapper/vg-b"), reference("/dev/sda")), (Some("vg-b"), None));
}

#[test]
fn snapshots_are_read_as_dmsetup_prints_them() {
    let text = "real: 0 96 linear a 0\norigin: 0 96 snapshot-origin /dev/mapper/real\n\
                s: 0 96 snapshot /dev/mapper/real b P 8\nt: 0 90 snapshot dm/real c PO 16 1 discard_zeroes_cow\n\
                u: 0 90 snapshot dm/real d N 16 2 discard_zeroes_cow discard_passdown_origin\n\
                v: 0 90 snapshot-merge dm/real e PO 16\n";
    let table = parse(text).unwrap();
    assert_eq!(table.to_string(), text);
    let TargetKind::Snapshot(snapshot) = &table.devices[3].targets[0].kind else { panic!("no snapshot") };
    assert_eq!((snapshot.persistence, snapshot.chunk.chunk_sectors()), (Persistence::PersistentOverflow, 16));
    assert!(snapshot.discard_zeroes_cow && !snapshot.discard_passdown_origin);
}

#[test]
fn thin_pools_and_their_volumes_are_read_as_dmsetup_prints_them() {
    let text = "pool: 0 20480 thin-pool 253:1 /dev/sdb 128 32768 0\n\
                other: 0 20480 thin-pool meta data 256 0 4 skip_block_zeroing ignore_discard read_only error_if_no_space\n\
                a: 0 2097152 thin /dev/mapper/pool 0\nb: 0 4096 thin dm/pool 16777215 /dev/sdc\n";
    let table = parse(text).unwrap();
    assert_eq!(table.to_string(), text);
    let TargetKind::ThinPool(pool) = &table.devices[1].targets[0].kind else { panic!("no pool") };
    let set = |word| pool.features.words().contains(&word);
    assert!(set("read_only") && set("ignore_discard") && !set("no_discard_passdown"));
    let TargetKind::Thin(thin) = &table.devices[3].targets[0].kind else { panic!("no thin volume") };
    assert_eq!((thin.device_id, thin.external_origin.as_deref()), (16_777_215, Some("/dev/sdc")));
    let short = parse("0 20480 thin-pool m d 128 5").unwrap();
    assert_eq!(short.to_string(), "0 20480 thin-pool m d 128 5 0\n");
}

#[test]
fn each_mistake_in_a_thin_pool_or_volume_is_named() {
    let pool = "p: 0 8192 thin-pool m d 128 0\n";
    let cases = [
        ("0 8 thin-pool m d 100 0", "block is 100, expected a multiple of 128 sectors, from 128 to 2097152"),
        ("0 8 thin-pool m d 4194304 0", "block is 4194304"),
        ("8 8 thin-pool m d 128 0", "start is 8, expected 0"),
        ("0 8 thin-pool m d 128 0 5 a b c d e", "number of features is \"5\", expected 0 to 4"),
        (
            "0 8 thin-pool m d 128 0 1 fast",
            "feature is \"fast\", expected skip_block_zeroing, ignore_discard",
        ),
        ("0 8 thin-pool m d 128 0 2 read_only", "feature is missing"),
        ("0 8 thin-pool m d 128 0 0 more", "argument is \"more\""),
        ("0 8 thin-pool m d 128 0\n8 8 zero", "line 2: target is zero, expected no other target"),
        ("0 8 thin x 16777216", "device number is 16777216, expected less than 16777216"),
        ("0 8 thin dm/p 0", "device is \"dm/p\", expected a device that is defined above"),
        (&format!("{pool}t: 0 8 thin dm/p 0 dm/p"), "external origin is \"dm/p\""),
        (&format!("{pool}t: 0 8 thin dm/p 0 a b"), "argument is \"b\""),
        ("d: 0 8 zero\np: 0 16 thin-pool m dm/d 128 0", "end of the range below is 16, expected at most 8"),
    ];
    for (text, expected) in cases {
        let message = error(text).to_string();
        assert!(message.contains(expected), "{text:?}: {message}\nexpected {expected}");
    }
}

#[test]
fn a_backslash_takes_the_next_character_as_it_is() {
    let table = parse("0 8 linear /my\\ disks/\\#1\\\\ 0").unwrap();
    assert_eq!(table.devices[0].targets[0].kind, TargetKind::Linear(below("/my disks/#1\\", 0)));
    assert_eq!(table.to_string(), "0 8 linear /my\\ disks/\\#1\\\\ 0\n");
}

#[test]
fn each_mistake_names_its_line_its_field_what_was_found_and_what_was_expected() {
    let cases = [
        ("", "dm table, line 1: table is empty, expected at least one line `START LENGTH TARGET ARGS...`"),
        ("# only\n\n", "dm table, line 2: table is empty"),
        ("0", "line 1: length is missing, expected a number"),
        (
            "0 8",
            "line 1: target is missing, expected linear, striped, delay, raid, zero, error, snapshot-origin, snapshot, snapshot-merge, thin-pool or thin",
        ),
        ("x 8 zero", "line 1: start is \"x\", expected a decimal number, at most 36028797018963967"),
        ("0 +8 zero", "length is \"+8\""),
        ("0 0x8 zero", "length is \"0x8\""),
        ("0 99999999999999999999 zero", "length is \"99999999999999999999\""),
        ("0 0 zero", "length is 0, expected at least 1 sector"),
        ("0 36028797018963967 zero\n36028797018963967 1 zero", "line 2: length is 1, expected at most 0"),
        ("8 8 zero", "line 1: start is 8, expected 0, where the targets before it end (there is a gap)"),
        (
            "0 8 zero\n\n7 8 zero",
            "line 3: start is 7, expected 8, where the targets before it end (there is an overlap)",
        ),
        ("0 8 zero 1", "argument is \"1\", expected the end of the line after the arguments of zero"),
        ("0 8 linear", "device is missing"),
        ("0 8 linear a", "offset is missing"),
        ("0 8 linear a -1", "offset is \"-1\""),
        ("0 8 linear a 36028797018963960", "offset is 36028797018963960, expected at most 36028797018963959"),
        ("0 8 linear a 0 b", "argument is \"b\""),
        ("0 8 delay a 0", "delay is missing, expected a number"),
        ("0 8 delay a 0 4294967296", "delay is 4294967296, expected at most 4294967295 milliseconds"),
        (
            "0 8 delay a 0 1 b 0 2",
            "argument is \"b\", expected the end of the line after the arguments of delay",
        ),
        ("0 8 striped 0 8 a 0", "number of stripes is 0, expected 1 to 4096"),
        ("0 8 striped 4097 8 a 0", "number of stripes is 4097"),
        ("0 8 striped 1 0 a 0", "chunk is 0"),
        ("0 8 striped 1 4294967296 a 0", "chunk is 4294967296"),
        ("0 10 striped 3 1 a 0 b 0 c 0", "length is 10, expected a multiple of the number of stripes, 3"),
        ("0 10 striped 2 2 a 0 b 0", "length is 10, expected a multiple of 2 stripes x chunk 2"),
        ("0 16 striped 2 8 a 0", "device is missing"),
        (
            "0 8 crypt a b",
            "target is crypt, which is not supported yet, expected linear, striped, delay, raid, zero, error, snapshot-origin, snapshot, \
             snapshot-merge, thin-pool or thin",
        ),
        ("8 8 snapshot-origin a", "start is 8, expected 0: a snapshot's sectors"),
        ("0 8 snapshot a b X 8", "kind of store is \"X\", expected P, PO or N"),
        ("0 8 snapshot a b P 12", "chunk is 12, expected a power of two up to 2097152 sectors"),
        ("0 8 snapshot a b P 8 3 x", "number of features is \"3\", expected 0 to 2"),
        ("0 8 snapshot-merge a b N 8", "kind of store is N, expected P or PO: what is only in memory"),
        ("0 8 snapshot a b P 8 1 x", "feature is \"x\", expected discard_zeroes_cow or"),
        ("0 8 snapshot a b P 8 1 discard_passdown_origin", "expected discard_zeroes_cow besides"),
        ("0 8 snapshot dm/a b P 8", "device is \"dm/a\", expected a device that is defined above"),
        ("a: 0 8 snapshot x dm/a P 8", "device is \"dm/a\", itself"),
        (
            "0 8 bogus",
            "target is \"bogus\", expected linear, striped, delay, raid, zero, error, snapshot-origin, snapshot, snapshot-merge, thin-pool or thin",
        ),
        (
            "0 8 raid raid5 1 8 2 - a - b",
            "RAID type is \"raid5\", expected raid0, raid1, raid10, raid4, raid5_ls,",
        ),
        ("0 8 raid raid5_0 1 8 2 - a - b", "RAID type is \"raid5_0\""),
        ("0 8 raid raid4 1 4 2 - a - b", "chunk is 4, expected a power of two from 8"),
        ("0 8 raid raid5_ls 1 8 1 - a", "number of RAID devices is 1, expected 2 of a raid5_ls at least"),
        (
            "0 8 raid raid6_zr 1 8 3 - a - b - c",
            "number of RAID devices is 3, expected 4 of a raid6_zr at least",
        ),
        (
            "0 16 raid raid6_zr 2 8 nosync 4 - a - b - c - d",
            "RAID parameter is nosync of a raid6_zr, expected it with raid1",
        ),
        (
            "0 8 raid raid4 4 8 sync rebuild 0 2 - a - b",
            "RAID parameter is sync beside rebuild, expected one of them",
        ),
        ("0 8 raid raid4 4 8 nosync rebuild 0 2 - a - b", "RAID parameter is nosync beside rebuild"),
        (
            "0 8 raid raid5_n 3 8 raid10_copies 2 2 - a - b",
            "raid10_copies of a raid5_n, expected it with raid10",
        ),
        (
            "0 8 raid raid5_n 3 8 write_mostly 1 2 - a - b",
            "write_mostly of a raid5_n, expected it with raid1",
        ),
        (
            "0 8 raid raid5_n 3 128 region_size 64 2 - a - b",
            "region_size is 64, expected the chunk, 128, at least",
        ),
        (
            "0 8 raid raid1 3 0 stripe_cache 512 2 - a - b",
            "stripe_cache of a raid1, expected it with raid4, raid5 or raid6",
        ),
        ("0 8 raid raid5_ls 3 8 delta_disks 1 2 - a - b", "RAID parameter is \"delta_disks\""),
        (
            "0 9 raid raid5_ls 1 8 3 - a - b - c",
            "length is 9, expected what divides evenly among the devices that have data",
        ),
        ("0 8 raid raid1 0 2 - a - b", "number of RAID parameters is 0, expected 1 (the chunk) to"),
        (
            "0 8 raid raid10 1 24 2 - a - b",
            "chunk is 24, expected a power of two from 8 to 2147483648 sectors",
        ),
        ("0 8 raid raid0 1 4 2 - a - b", "chunk is 4"),
        ("0 8 raid raid1 2 0 turbo 2 - a - b", "RAID parameter is \"turbo\", expected sync, nosync, rebuild"),
        ("0 8 raid raid1 3 0 sync nosync 2 - a - b", "RAID parameter is nosync again, expected it once"),
        (
            "0 8 raid raid1 2 0 rebuild 1 2 - a - b",
            "number of RAID parameters is 1, which ends with rebuild, expected its value to be counted too",
        ),
        (
            "0 8 raid raid1 3 0 rebuild 2 2 - a - b",
            "rebuild is 2, expected less than 2, the number of devices",
        ),
        ("0 8 raid raid0 3 8 rebuild 1 2 - a - b", "RAID parameter is rebuild of a raid0"),
        ("0 8 raid raid10 3 8 write_mostly 1 2 - a - b", "RAID parameter is write_mostly of a raid10"),
        ("0 8 raid raid1 3 0 region_size 5 2 - a - b", "region_size is 5, expected a power of two"),
        ("0 8 raid raid1 3 0 raid10_copies 2 2 - a - b", "RAID parameter is raid10_copies of a raid1"),
        (
            "0 8 raid raid10 3 8 raid10_copies 3 2 - a - b",
            "raid10_copies is 3, expected 2 to 2, the number of devices",
        ),
        (
            "0 8 raid raid10 3 8 raid10_format beside 2 - a - b",
            "raid10_format is \"beside\", expected near, far or offset",
        ),
        ("0 8 raid raid1 1 0 0", "number of RAID devices is 0, expected 1 to 253"),
        ("0 8 raid raid1 1 0 2 - a", "metadata device is missing"),
        (
            "0 8 raid raid1 1 0 2 - a b c",
            "metadata device is \"b\", expected -, for none: arrays with metadata are LVM's",
        ),
        ("0 9 raid raid0 1 8 2 - a - b", "length is 9, expected what divides evenly among the devices"),
        (
            "a: 0 8 zero\nb: 0 16 raid raid1 1 0 2 - x - dm/a",
            "end of the range below is 16, expected at most 8",
        ),
        ("0 8 \x1b[2J", "target is \"\\u{1b}[2J\""),
        ("0 8 zero\\", "last character is a backslash"),
        ("a:", "targets is missing after \"a:\""),
        (": 0 8 zero", "name is \"\", expected 1 to 127 bytes without '/' and ','"),
        ("a/b: 0 8 zero", "name is \"a/b\""),
        ("a: 0 8 zero\n8 8 zero", "line 2: name is missing, expected a name on every line or on none"),
        ("0 8 zero\na: 0 8 zero", "line 2: name is a, expected a name on every line or on none"),
        (
            "a: 0 8 zero\nb: 0 8 zero\na: 8 8 zero",
            "line 3: name is \"a\" again, expected each device's lines in one run",
        ),
        ("a: 0 8 linear dm/a 0", "device is \"dm/a\", itself, expected a device that is defined above"),
        (
            "a: 0 8 linear dm/b 0\nb: 0 8 zero",
            "line 1: device is \"dm/b\", expected a device that is defined above",
        ),
        ("0 8 linear dm/b 0", "device is \"dm/b\""),
        (
            "a: 0 8 zero\nb: 0 8 linear dm/a 1",
            "line 2: end of the range below is 9, expected at most 8, the size of a",
        ),
        ("a: 0 8 zero\nb: 0 16 striped 2 4 x 0 dm/a 1", "end of the range below is 9"),
    ];
    for (text, expected) in cases {
        let message = error(text).to_string();
        assert!(message.contains(expected), "{text:?}: {message}\nexpected {expected}");
    }
    assert_eq!(error("0 8 cache a 1").kind, ErrorKind::Unsupported);
    assert_eq!(error("\n0 8 cache a 1").position, Position::Line(2));
}

#[test]
fn an_array_is_read_as_the_kernel_reads_it() {
    let of = |text: &str| match &parse(text).expect(text).devices[0].targets[0].kind {
        TargetKind::Raid(raid) => raid.clone(),
        other => panic!("{other:?}"),
    };
    let raid = of("0 2048 raid raid10 5 128 raid10_format far region_size 1024 4 - a - b - - - c");
    let kind = RaidKind::Raid10 { format: Raid10Format::Far, copies: 2, use_near_sets: false };
    assert_eq!((raid.kind, raid.chunk, raid.nosync, raid.region_size), (kind, 128, false, Some(1024)));
    let devices: Vec<_> = raid.devices.iter().map(|it| it.as_ref().map(|it| it.dev.as_str())).collect();
    assert_eq!(devices, [Some("a"), Some("b"), None, Some("c")]);
    assert_eq!(raid.device_sectors(2048), Some(1024));
    let raid = of("0 2048 raid raid1 8 0 nosync rebuild 1 write_mostly 0 max_recovery_rate 9 2 - a - b");
    assert_eq!((raid.nosync, raid.rebuild, raid.write_mostly), (true, vec![1], vec![0]));
    assert_eq!(raid.max_recovery_rate, Some(9));
    let raid = of("0 96 raid raid0 1 8 3 - a\\ b - y - null:1M");
    assert_eq!((raid.device_sectors(96), raid.present().count()), (Some(32), 3));
    let raid = of("0 6144 raid raid6_nc 5 64 rebuild 2 stripe_cache 512 5 - a - b - c - d - -");
    assert_eq!((raid.kind, raid.chunk), (RaidKind::Parity(ParityType::Raid6Nc), 64));
    assert_eq!((raid.rebuild.as_slice(), raid.stripe_cache), (&[2][..], Some(512)));
    assert_eq!((raid.device_sectors(6144), raid.present().count()), (Some(2048), 4));
    assert_eq!(of("0 4096 raid raid4 2 128 nosync 3 - a - b - c").device_sectors(4096), Some(2048));
}

#[test]
fn a_table_that_is_too_long_is_refused_before_it_is_read() {
    assert_eq!(error(&"#".repeat((4 << 20) + 1)).kind, ErrorKind::Limit);
    let lines: String = (0..65_537).map(|i| format!("{i} 1 zero\n")).collect();
    assert_eq!(
        error(&lines).to_string(),
        "dm table, line 65537: number of targets is 65537, expected at most 65536"
    );
}

fn any_dev() -> impl Strategy<Value = String> {
    "[a-z/#\\\\ ,=é\t]{1,8}".prop_filter("no reference", |dev| !dev.starts_with("dm/"))
}

/// An array on devices of which one may be missing, and its length.
fn any_raid() -> impl Strategy<Value = (TargetKind, u64)> {
    let device = proptest::option::weighted(0.9, any_dev().prop_filter("means none", |dev| dev != "-"));
    let devices = proptest::collection::vec(device, 2..6);
    let numbers = (proptest::option::of(0u64..99), proptest::option::of(0u64..99), any::<bool>());
    let format = proptest::sample::select(Raid10Format::ALL.to_vec());
    let parity = proptest::sample::select(ParityType::ALL.to_vec());
    let level = (0..4, 2u8..6, format, any::<bool>(), parity);
    let parts = (devices, level, 3u32..20, numbers, 1u64..5000, any::<bool>());
    parts.prop_map(
        |(devices, (level, copies, format, use_near_sets, parity), shift, (min, max, nosync), rows, more)| {
            let count = u8::try_from(devices.len()).unwrap();
            let kind = match level {
                0 => RaidKind::Raid0,
                1 => RaidKind::Raid1,
                2 => RaidKind::Raid10 { format, copies: copies.min(count), use_near_sets },
                _ => match ParityType::of_target(parity.name()) {
                    Some(kind) if kind.devices_min() <= count.into() => RaidKind::Parity(kind),
                    _ => RaidKind::Parity(ParityType::Raid5Ls),
                },
            };
            let parities = if let RaidKind::Parity(kind) = kind { kind.parities() } else { 0 };
            let raid = Raid {
                kind,
                chunk: 1 << shift,
                // Not with a second parity, and with the first one not beside `rebuild`.
                nosync: nosync && parities < 2 && !(parities == 1 && more),
                rebuild: if more && level > 0 { vec![1, 0] } else { Vec::new() },
                write_mostly: if more && level == 1 { vec![0] } else { Vec::new() },
                region_size: more.then_some(2048.max(1 << shift)),
                stripe_cache: if more && parities > 0 { min } else { None },
                min_recovery_rate: min,
                max_recovery_rate: max,
                devices: devices.into_iter().map(|dev| dev.map(|dev| Below { dev, offset: 0 })).collect(),
            };
            (TargetKind::Raid(raid), rows * u64::from(u16::from(count) - parities))
        },
    )
}

fn any_kind() -> impl Strategy<Value = (TargetKind, u64)> {
    let below = (any_dev(), 0..1u64 << 40).prop_map(|(dev, offset)| Below { dev, offset }).boxed();
    let length = 1..1u64 << 30;
    prop_oneof![
        length.clone().prop_map(|length| (TargetKind::Zero, length)),
        length.clone().prop_map(|length| (TargetKind::Error, length)),
        (below.clone(), length.clone()).prop_map(|(below, length)| (TargetKind::Linear(below), length)),
        (below.clone(), any::<u32>(), length)
            .prop_map(|(below, delay_ms, length)| (TargetKind::Delay { below, delay_ms }, length)),
        any_raid(),
        (proptest::collection::vec(below, 1..5), 1u32..5000, 1u64..5000).prop_map(
            |(stripes, chunk, rows)| {
                let length = u64::try_from(stripes.len()).unwrap() * u64::from(chunk) * rows;
                (TargetKind::Striped { chunk, stripes }, length)
            }
        ),
    ]
}

/// A valid table, its line numbers as they will be read.
fn any_table() -> impl Strategy<Value = Table> {
    let targets = proptest::collection::vec(any_kind(), 1..4).boxed();
    let named = proptest::collection::btree_map("[a-z:#\\\\ -]{1,6}", targets.clone(), 1..4)
        .prop_map(|devices| devices.into_iter().map(|(name, targets)| (Some(name), targets)).collect());
    prop_oneof![targets.prop_map(|targets| vec![(None, targets)]), named].prop_map(
        |devices: Vec<(Option<String>, Vec<_>)>| {
            let mut line_number = 0;
            let devices = devices.into_iter().map(|(name, kinds)| {
                let mut start = 0;
                let targets = kinds.into_iter().map(|(kind, length)| {
                    line_number += 1;
                    start += length;
                    Target { start: start - length, length, line_number, kind }
                });
                Device { name, targets: targets.collect() }
            });
            Table { devices: devices.collect() }
        },
    )
}

proptest! {
    #[test]
    fn a_table_that_is_printed_reads_back_as_the_same(table in any_table()) {
        prop_assert_eq!(parse(&table.to_string()).unwrap(), table);
    }
}

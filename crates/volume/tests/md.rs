//! Arrays: which devices make one up, which are left out and why, and what is refused; what is read is compared with the
//! members' sectors, each of which bears its own number.

mod lab;

use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use blockwork_format::md::v1::{Features, Minor, Region, Superblock};
use blockwork_format::md::{IN_SYNC, Level, Role, Uuid, bad_blocks, v0};
use blockwork_volume::md::MemberState;
use blockwork_volume::{Assembly, Content, DeviceKind, VolumeError};
use lab::{DATA, Disk, Lab, Set, all_names, content, numbered, put_superblock, refused, volume, warning};

const N2: u32 = 0x102;

/// Sectors of a member's data.
fn sectors(member: u32, start: u64, count: u64) -> Vec<u8> {
    (DATA + start..DATA + start + count).flat_map(|sector| numbered(member, sector)).collect()
}

/// Chunks of 8 sectors: of which member, which row.
fn rows(chunks: &[(u32, u64)]) -> Vec<u8> {
    chunks.iter().flat_map(|(member, row)| sectors(*member, row * 8, 8)).collect()
}

fn refs(disks: &[Disk]) -> Vec<&Disk> {
    disks.iter().collect()
}

fn with(disk: &Disk, superblock: Superblock, change: impl FnOnce(&mut Superblock)) {
    let mut superblock = superblock;
    change(&mut superblock);
    put_superblock(disk, &superblock);
}

/// What became of each member, in the order of the disks.
fn states(assembly: &Assembly) -> Vec<MemberState> {
    assembly.graph().arrays[0].members.iter().map(|member| member.state.clone()).collect()
}

const fn place(place: u16) -> MemberState {
    MemberState::InPlace { place }
}

#[test]
fn a_raid0_is_read_chunk_by_chunk_in_any_order_of_disks() {
    let lab = Lab::new();
    let members = Set::new("host:r0", Level::Raid0, 0, 3).members(&lab);
    let expected: Vec<u8> = rows(&(0..32).flat_map(|row| [(0, row), (1, row), (2, row)]).collect::<Vec<_>>());
    for order in [[0, 1, 2], [2, 0, 1], [1, 2, 0]] {
        let mut assembly = lab.open(&order.map(|n| &members[n]));
        let array = volume(&mut assembly, "md/r0");
        assert!(content(&assembly, &array) == expected, "{order:?}");
        assert_eq!(assembly.warnings(), [] as [&str; 0]);
        assert_eq!(all_names(&mut assembly), ["md/r0"]);
        let uuid = assembly.graph().arrays[0].truth.uuid();
        assert_eq!(volume(&mut assembly, &format!("md/{uuid}")).name, "md/r0");
    }
}

#[test]
fn a_raid0_needs_all_members() {
    let lab = Lab::new();
    let members = Set::new("r0", Level::Raid0, 0, 3).members(&lab);
    let mut assembly = lab.open(&[&members[0], &members[2]]);
    let said = refused(&mut assembly, "md/r0");
    assert!(said.starts_with("md/r0: member 1 of 3 is missing or not in sync"), "{said}");
    assert_eq!(all_names(&mut assembly), [] as [&str; 0], "its members are no volumes by themselves");
}

#[test]
fn members_of_different_size_make_zones_only_with_a_layout() {
    let lab = Lab::new();
    let mut members = Vec::new();
    for (place, size) in [(0, 256), (1, 320), (2, 320)] {
        let set = Set { size, ..Set::new("r0", Level::Raid0, 2, 3) };
        members.push(set.member(&lab, &format!("m{place}"), place));
        with(&members[usize::from(place)], set.superblock(place), |_| {});
    }
    let said = refused(&mut lab.open(&refs(&members)), "md/r0");
    assert!(said.contains("--update=layout-original"), "{said}");
    for place in 0..3 {
        let size = if place == 0 { 256 } else { 320 };
        let set = Set { size, ..Set::new("r0", Level::Raid0, 2, 3) };
        with(&members[usize::from(place)], set.superblock(place), |superblock| {
            superblock.features = Features::RAID0_LAYOUT;
        });
    }
    let mut assembly = lab.open(&refs(&members));
    let array = volume(&mut assembly, "md/r0");
    let bytes = content(&assembly, &array);
    assert_eq!(bytes.len() as u64, (3 * 256 + 2 * 64) * 512);
    assert!(bytes[3 * 256 * 512..][..2 * 8 * 512] == rows(&[(1, 32), (2, 32)]), "the second zone");
}

#[test]
fn a_raid10_is_served_without_one_of_each_pair_and_refused_without_both() {
    let lab = Lab::new();
    let members = Set::new("ten", Level::Raid10, N2, 4).members(&lab);
    for missing in 0..4 {
        let left: Vec<&Disk> =
            members.iter().enumerate().filter(|(n, _)| *n != missing).map(|(_, disk)| disk).collect();
        let mut assembly = lab.open(&left);
        let array = volume(&mut assembly, "md/ten");
        // Of a pair that is whole either may be read.
        let (pair, other) = (missing / 2, missing ^ 1);
        let bytes = content(&assembly, &array);
        for row in 0..32u64 {
            let chunk = usize::try_from(2 * row).unwrap() + pair;
            assert!(bytes[chunk * 4096..][..4096] == rows(&[(u32::try_from(other).unwrap(), row)]));
        }
        warning(&assembly, &format!("md/ten: it is degraded: member {missing} of 4 is missing"));
        assert_eq!(assembly.graph().arrays[0].missing(), [u16::try_from(missing).unwrap()]);
    }
    let said = refused(&mut lab.open(&[&members[0], &members[1]]), "md/ten");
    assert!(said.contains("members 2, 3 of 4 are missing or not in sync"), "{said}");
    volume(&mut lab.open(&[&members[0], &members[3]]), "md/ten");
}

#[test]
fn who_is_one_event_behind_is_as_good_and_who_is_more_is_left_out_with_both_numbers() {
    let lab = Lab::new();
    let set = Set::new("one", Level::Raid1, 0, 3);
    let members = set.members(&lab);
    with(&members[0], set.superblock(0), |superblock| superblock.events = 17);
    with(&members[1], set.superblock(1), |superblock| superblock.events = 18);
    with(&members[2], set.superblock(2), |superblock| superblock.events = 16);
    for order in [[0, 1, 2], [2, 1, 0]] {
        let mut assembly = lab.open(&order.map(|n| &members[n]));
        let array = volume(&mut assembly, "md/one");
        let bytes = content(&assembly, &array);
        let old = numbered(2, 0)[6..8].to_vec();
        assert!(bytes.chunks(8).all(|word| word[6..8] != old), "nothing of the stale one is read");
        let mut found = states(&assembly);
        found.sort_by_key(|state| format!("{state:?}"));
        assert_eq!(found, [place(0), place(1), MemberState::OutOfDate]);
        let said = warning(&assembly, "out of date (events 16, and the array is at 18): it is left out");
        assert!(said.starts_with("md/one: ") && said.contains("/one-2 is out of date"), "{said}");
        assert!(said.ends_with("`blockwork md add` takes it back (Linux: `mdadm --add`)"), "{said}");
    }
}

#[test]
fn who_is_out_of_date_in_an_array_that_is_only_read_is_for_linux_to_take_back() {
    let lab = Lab::new();
    let set = Set::new("five", Level::Raid5, 2, 3);
    let members = set.members(&lab);
    for (nth, member) in (0..).zip(&members) {
        with(member, set.superblock(nth), |superblock| {
            // Nobody knows what that means.
            superblock.reserved[31] = 1;
            superblock.events -= if nth == 2 { 2 } else { 0 };
        });
    }
    let mut assembly = lab.open(&refs(&members));
    volume(&mut assembly, "md/five");
    let said = warning(&assembly, "out of date (events 8, and the array is at 10): it is left out");
    assert!(said.ends_with("it is left out; Linux's `mdadm --add` takes it back"), "{said}");
}

#[test]
fn an_array_that_another_process_changes_is_seen_as_it_was_at_one_moment() {
    let lab = Lab::new();
    let set = Set::new("one", Level::Raid1, 0, 2);
    let members = set.members(&lab);
    let (assembling, assemblies) = sync_channel(0);
    std::thread::scope(|scope| {
        let (members, set) = (&members, &set);
        scope.spawn(move || {
            // At some time during each: as an array does it, of which no member is ever more than one event behind.
            for (round, after) in assemblies.iter().zip((0..600).step_by(7).cycle()) {
                let begin = Instant::now();
                while begin.elapsed() < Duration::from_micros(after) {
                    std::thread::yield_now();
                }
                for events in (100 + 4 * round)..(104 + 4 * round) {
                    for (member, place) in members.iter().zip(0..) {
                        with(member, set.superblock(place), |superblock| superblock.events = events);
                    }
                }
            }
        });
        let assembling = assembling;
        for round in 0_u64..300 {
            assembling.send(round).expect("the other has not ended");
            let mut assembly = lab.open(&refs(members));
            volume(&mut assembly, "md/one");
            assert_eq!(states(&assembly), [place(0), place(1)], "{:?}", assembly.warnings());
        }
    });
}

#[test]
fn whom_the_newest_has_given_up_is_left_out() {
    let lab = Lab::new();
    let set = Set::new("one", Level::Raid1, 0, 2);
    let members = set.members(&lab);
    with(&members[1], set.superblock(1), |superblock| {
        superblock.events += 1;
        superblock.roles[0] = Role::Faulty;
    });
    let mut assembly = lab.open(&refs(&members));
    let array = volume(&mut assembly, "md/one");
    assert!(content(&assembly, &array) == sectors(1, 0, 256));
    assert_eq!(states(&assembly), [MemberState::Faulty, place(1)]);
    warning(&assembly, "/one-0 has failed, as ");
}

#[test]
fn two_halves_that_have_given_each_other_up_are_refused_by_name_unless_one_is_newer() {
    let lab = Lab::new();
    let set = Set::new("one", Level::Raid1, 0, 2);
    let members = set.members(&lab);
    with(&members[0], set.superblock(0), |superblock| superblock.roles[1] = Role::Faulty);
    with(&members[1], set.superblock(1), |superblock| superblock.roles[0] = Role::Faulty);
    let said = refused(&mut lab.open(&refs(&members)), "md/one");
    assert!(
        said.contains("/one-0 and ") && said.contains("/one-1 each say that the other has failed"),
        "{said}"
    );
    for (disk, half) in members.iter().zip(0..) {
        let mut assembly = lab.open(&[disk]);
        let array = volume(&mut assembly, "md/one");
        assert!(content(&assembly, &array) == sectors(half, 0, 256));
    }
    with(&members[1], set.superblock(1), |superblock| {
        superblock.roles[0] = Role::Faulty;
        superblock.events += 5;
    });
    let mut assembly = lab.open(&refs(&members));
    let array = volume(&mut assembly, "md/one");
    assert!(content(&assembly, &array) == sectors(1, 0, 256));
}

#[test]
fn what_a_newer_superblock_calls_stale_is_refused_also_where_its_disk_cannot_be_used() {
    let lab = Lab::new();
    let set = Set::new("one", Level::Raid1, 0, 2);
    let members = set.members(&lab);
    let cut = |change: &dyn Fn(&mut Superblock)| {
        members[0].cut((DATA + 256) * 512);
        with(&members[0], set.superblock(0), change);
        members[0].cut((DATA + 255) * 512);
    };
    let given_up = |superblock: &mut Superblock| superblock.roles[1] = Role::Faulty;
    for (ahead, is_given_up) in [(2, false), (0, true), (1, true), (2, true)] {
        cut(&|superblock| {
            superblock.events += ahead;
            if is_given_up {
                given_up(superblock);
            }
        });
        let what = if is_given_up { "was given up" } else { "is out of date" };
        for order in [[0, 1], [1, 0]] {
            let said = refused(&mut lab.open_for_writing(&order.map(|n| &members[n])), "md/one");
            assert!(said.contains(&format!("/one-1 (events 10) {what}, as ")), "{said}");
            assert!(
                said.contains("data_size is 256 sectors from 64, expected an end at 319 at most"),
                "{said}"
            );
            assert!(
                said.contains(
                    "its size again, 163840 bytes or more (an image file: `truncate -s 163840 FILE`)"
                ),
                "{said}"
            );
            assert!(said.contains(&format!("/one-0 (events {}) says", 10 + ahead)), "{said}");
        }
        // The remedies.
        let mut assembly = lab.open(&[&members[1]]);
        let array = volume(&mut assembly, "md/one");
        assert!(content(&assembly, &array) == sectors(1, 0, 256));
        members[0].cut(163_840);
        let mut assembly = lab.open(&refs(&members));
        let array = volume(&mut assembly, "md/one");
        assert!(content(&assembly, &array)[..255 * 512] == sectors(0, 0, 255));
    }
    // It may be of a kind that is not known here, too.
    members[0].cut((DATA + 256) * 512);
    with(&members[0], set.superblock(0), |it| (it.features.0 |= 1 << 30, it.events += 2).1);
    let said = refused(&mut lab.open(&refs(&members)), "md/one");
    assert!(said.contains("feature map is 0x40000000") && !said.contains("truncate"), "{said}");
    // Who is as old, or older, and has nothing against the others takes no part, and that is all.
    let cases: [&dyn Fn(&mut Superblock); 4] =
        [&|_| (), &|it| it.events += 1, &|it| it.events -= 1, &|it| (it.events -= 1, given_up(it)).1];
    for change in cases {
        cut(change);
        let mut assembly = lab.open(&refs(&members));
        let array = volume(&mut assembly, "md/one");
        assert!(content(&assembly, &array) == sectors(1, 0, 256));
        warning(&assembly, "it is degraded: member 0 of 2 is missing");
    }
}

#[test]
fn a_copy_of_a_member_beside_it_is_refused_and_an_older_copy_left_out() {
    let lab = Lab::new();
    let set = Set::new("ten", Level::Raid10, N2, 4);
    let members = set.members(&lab);
    let copy = set.member(&lab, "copy", 2);
    let mut all = refs(&members);
    all.push(&copy);
    let said = refused(&mut lab.open(&all), "md/ten");
    assert!(said.contains("/ten-2 and ") && said.contains("/copy both are member 2"), "{said}");
    with(&copy, set.superblock(2), |superblock| superblock.events -= 1);
    let mut assembly = lab.open(&all);
    volume(&mut assembly, "md/ten");
    warning(&assembly, "/copy both are member 2: ");
    assert_eq!(states(&assembly)[4], MemberState::Superseded);
}

#[test]
fn members_of_another_shape_and_spares_are_told_apart_from_members() {
    let lab = Lab::new();
    let set = Set::new("ten", Level::Raid10, N2, 4);
    let mut members = set.members(&lab);
    members.push(set.member(&lab, "spare", 4));
    let other = Set { size: 128, ..set.clone() };
    members.push(other.member(&lab, "other", 1));
    let mut assembly = lab.open(&refs(&members));
    volume(&mut assembly, "md/ten");
    let expected = [place(0), place(1), place(2), place(3), MemberState::Spare, MemberState::Foreign];
    assert_eq!(states(&assembly), expected);
    warning(&assembly, "/other has the UUID of this array and another shape");
}

#[test]
fn a_member_of_another_size_is_one_that_a_power_cut_has_kept_from_growing_or_foreign() {
    let set = Set::new("one", Level::Raid1, 0, 2);
    let grown = Superblock { size: 512, data_size: 512, events: 11, resync_offset: 256, ..set.superblock(0) };
    let bitmap = Features::BITMAP;
    let gave_up = |mut it: Superblock| {
        it.roles[1] = Role::Faulty;
        it
    };
    for (newer, room, order, expected, resync_from) in [
        (grown.clone(), 512, [0, 1], place(1), 256),
        // As one who says that the new part agrees leaves it: not on a member that does not know of it.
        (Superblock { resync_offset: IN_SYNC, ..grown.clone() }, 512, [0, 1], place(1), 256),
        (Superblock { resync_offset: 8, ..grown.clone() }, 512, [0, 1], place(1), 8),
        // Written anew after a failure, with the same events: one of the two sizes.
        (Superblock { events: 10, ..grown.clone() }, 512, [0, 1], place(1), 256),
        (Superblock { events: 10, ..grown.clone() }, 512, [1, 0], place(1), IN_SYNC),
        (gave_up(Superblock { events: 10, ..grown.clone() }), 512, [1, 0], MemberState::Faulty, 256),
        (gave_up(grown.clone()), 512, [0, 1], MemberState::Faulty, 256),
        (Superblock { events: 12, ..grown.clone() }, 512, [0, 1], MemberState::OutOfDate, 256),
        // Who has a bitmap of the new size has told all of that size before.
        (
            Superblock { features: bitmap, bitmap_offset: 8, ..grown.clone() },
            512,
            [0, 1],
            MemberState::Foreign,
            256,
        ),
        (grown.clone(), 500, [0, 1], MemberState::Foreign, 256),
    ] {
        let lab = Lab::new();
        let disks = [lab.disk("new", DATA + 512), lab.disk("old", DATA + room)];
        put_superblock(&disks[0], &newer);
        put_superblock(&disks[1], &set.superblock(1));
        let assembly = lab.open(&order.map(|n| &disks[n]));
        let array = &assembly.graph().arrays[0];
        let blockwork_format::md::Superblock::V1(truth) = &*array.truth else { panic!("version 1") };
        let old = &array.members[order.iter().position(|n| *n == 1).unwrap()];
        let size = if order[0] == 0 || expected != place(1) { 512 } else { 256 };
        let case = format!("{newer:?}, {room}, {order:?}: {:?}", assembly.warnings());
        assert_eq!(old.state, expected, "{case}");
        let found = (truth.events, truth.size, truth.resync_offset);
        assert_eq!(found, (newer.events, size, resync_from), "{case}");
    }
}

#[test]
fn a_member_that_is_not_recovered_is_no_copy_and_its_replacement_no_member() {
    let lab = Lab::new();
    let set = Set::new("one", Level::Raid1, 0, 2);
    let members = set.members(&lab);
    with(&members[0], set.superblock(0), |superblock| {
        (superblock.features, superblock.recovery_offset) = (Features::RECOVERY_OFFSET, 100);
    });
    let said = refused(&mut lab.open(&[&members[0]]), "md/one");
    assert!(said.contains("members 0, 1 of 2 are missing or not in sync"), "{said}");
    let mut assembly = lab.open(&refs(&members));
    let array = volume(&mut assembly, "md/one");
    assert!(content(&assembly, &array)[100 * 512..] == sectors(1, 100, 156));
    warning(&assembly, "/one-0 is in sync up to sector 100 only");
    with(&members[0], set.superblock(0), |superblock| {
        superblock.features = Features::REPLACEMENT | Features::RECOVERY_OFFSET;
        superblock.dev_number = 2;
        superblock.roles[2] = Role::Active(0);
    });
    with(&members[1], set.superblock(1), |superblock| superblock.roles[2] = Role::Active(0));
    let mut assembly = lab.open(&refs(&members));
    volume(&mut assembly, "md/one");
    assert_eq!(states(&assembly), [MemberState::Replacement, place(1)]);
}

/// What it lacks would be read as soon as it has the place.
#[test]
fn a_replacement_has_its_list_of_bad_blocks_and_where_that_cannot_be_read_the_array_is_not_written() {
    let lab = Lab::new();
    let set = Set::new("one", Level::Raid1, 0, 2);
    let disks: Vec<_> = (0..3).map(|n| lab.disk(&format!("one-{n}"), 512)).collect();
    for (n, disk) in (0..).zip(&disks) {
        with(disk, set.superblock(n % 2), |superblock| {
            superblock.roles[2] = Role::Active(0);
            (superblock.bblog_offset, superblock.bblog_sectors) = (8, 8);
            if n == 2 {
                superblock.features =
                    Features::REPLACEMENT | Features::RECOVERY_OFFSET | Features::BAD_BLOCKS;
                (superblock.dev_number, superblock.recovery_offset) = (2, 100);
                superblock.device_uuid = Uuid([2; 16]);
            }
        });
    }
    let log = set.superblock(0).super_offset + 8;
    let list = [Region { start: DATA + 40, sectors: 8 }, Region { start: DATA + 80, sectors: 8 }];
    disks[2].write(log * 512, &bad_blocks::encode(&list, 0, 8).unwrap());
    let mut assembly = lab.open_for_writing(&refs(&disks));
    assert!(!volume(&mut assembly, "md/one").read_only);
    let array = assembly.graph().arrays[0].layer.clone().expect("it is served");
    let [(role, replacement)] = &array.status().replacements[..] else { panic!("{:?}", array.status()) };
    assert_eq!((*role, replacement.bad_ranges), (0, 2));
    drop((assembly, array));
    // Entries of no sectors.
    disks[2].write(log * 512, &[0; 4096]);
    let mut assembly = lab.open_for_writing(&refs(&disks));
    assert!(volume(&mut assembly, "md/one").read_only);
    let graph = assembly.graph();
    let said = graph.device(graph.arrays[0].device).read_only.as_deref().unwrap_or_default();
    assert!(said.contains("/one-2: md bad block log at 8192: entry is 0 units"), "{said}");
}

#[test]
fn levels_and_features_that_are_not_supported_are_shown_and_refused() {
    let lab = Lab::new();
    let linear = Set::new("multipath", Level::Other(-4), 0, 3);
    let reshaped = Set::new("reshaped", Level::Raid10, N2, 2);
    let mut disks = linear.members(&lab);
    for (place, disk) in (0..).zip(reshaped.members(&lab)) {
        with(&disk, reshaped.superblock(place), |superblock| superblock.features = Features::RESHAPE_ACTIVE);
        disks.push(disk);
    }
    let mut assembly = lab.open(&refs(&disks));
    for (name, why) in [("multipath", "level is multipath"), ("reshaped", "a reshape is under way")] {
        let said = refused(&mut assembly, &format!("md/{name}"));
        assert!(said.contains(why) && said.contains("let Linux serve this array"), "{said}");
    }
    assert_eq!(assembly.graph().arrays.len(), 2);
    // New bytes in the superblock: somebody may mean something by them.
    let lab = Lab::new();
    let set = Set::new("new", Level::Raid1, 0, 2);
    let members = set.members(&lab);
    with(&members[0], set.superblock(0), |superblock| superblock.reserved[31] = 1);
    let mut assembly = lab.open_for_writing(&refs(&members));
    let chosen = assembly.choose(&["md/new".to_owned()]).unwrap().remove(0);
    assert!(chosen.volume.read_only && chosen.read_only.unwrap().contains("serve it read-only"));
}

#[test]
fn a_member_whose_superblock_is_damaged_is_no_disk_of_what_its_array_holds() {
    let lab = Lab::new();
    let set = Set::new("whole", Level::Raid1, 0, 2);
    let members = set.members(&lab);
    let superblocks = [0, 1].map(|n| {
        // At the end, so that the disk shows what the array holds.
        let disk = &members[usize::from(n)];
        let super_offset = Minor::V1_0.sector(disk.sectors()).unwrap();
        let mut superblock = set.superblock(n);
        disk.write(superblock.super_offset * 512, &[0; 4096]);
        (superblock.minor, superblock.super_offset, superblock.data_offset) = (Minor::V1_0, super_offset, 0);
        superblock.data_size = super_offset;
        (superblock.bblog_sectors, superblock.bblog_offset) = (0, 0);
        put_superblock(disk, &superblock);
        disk.write(0, b"XFSB");
        superblock
    });
    let mut whole = lab.open(&refs(&members));
    assert_eq!(all_names(&mut whole), ["md/whole"], "{:?}", whole.warnings());
    drop(whole);
    let mut broken = superblocks[0].encode();
    broken[100] ^= 1;
    members[0].write(superblocks[0].super_offset * 512, &broken);
    let mut assembly = lab.open(&refs(&members));
    let contents = assembly.graph().iter().map(|(_, device)| &device.content);
    assert_eq!(contents.filter(|content| matches!(content, Content::DamagedMember(None))).count(), 1);
    assert_eq!(all_names(&mut assembly), ["md/whole"], "degraded, of the other one");
    warning(&assembly, "checksum");
    // Who names it gets it.
    volume(&mut assembly, "disk/whole-0");
}

#[test]
fn a_member_of_a_firmwares_array_is_told_and_neither_it_nor_its_partitions_are_served_unasked() {
    let lab = Lab::new();
    let disk = lab.disk("imsm", 8192);
    // A mirror shows what it holds: a table with a partition.
    let mut table = [0; 512];
    table[446..462].copy_from_slice(b"\0\0\0\0\x83\0\0\0\0\x08\0\0\0\x08\0\0");
    table[510..].copy_from_slice(b"\x55\xaa");
    disk.write(0, &table);
    assert_eq!(all_names(&mut lab.open(&[&disk])), ["disk/imsm", "disk/imsm/1"]);
    disk.write((8192 - 2) * 512, b"Intel Raid ISM Cfg Sig. 1.0.00");
    let mut assembly = lab.open(&[&disk]);
    assert_eq!(all_names(&mut assembly), [] as [&str; 0]);
    assert!(assembly.graph().find("disk/imsm/1").is_none());
    warning(&assembly, "a member of an Intel Matrix Storage (imsm) array");
    // Who names the disk gets it.
    volume(&mut assembly, "disk/imsm");
}

#[test]
fn names_lose_their_host_become_unique_and_are_uuids_where_they_are_no_names() {
    let lab = Lab::new();
    let mut disks = Vec::new();
    for (n, name) in (0u8..).zip(["here:data", "there:data", "here:a/b", "here:..", ""]) {
        let set = Set { uuid: [n + 1; 16], ..Set::new(name, Level::Raid1, 0, 1) };
        disks.push(set.member(&lab, &format!("disk{n}"), 0));
    }
    let mut assembly = lab.open(&refs(&disks));
    let names = all_names(&mut assembly);
    let uuid = |n: u8| format!("md/{0}:{0}:{0}:{0}", format!("{n:02x}").repeat(4));
    assert_eq!(names, ["md/data".to_owned(), "md/data#2".to_owned(), uuid(3), uuid(4), uuid(5)]);
}

#[test]
fn a_member_is_not_served_beside_its_array_unless_both_are_only_read() {
    let lab = Lab::new();
    let members = Set::new("one", Level::Raid1, 0, 2).members(&lab);
    let both = ["md/one", "disk/one-1"].map(str::to_owned);
    let mut assembly = lab.open_for_writing(&refs(&members));
    assert!(!volume(&mut assembly, "disk/one-1").read_only, "who asks for it by name knows why");
    assert!(!volume(&mut assembly, "md/one").read_only);
    match assembly.choose(&both) {
        Err(VolumeError::Overlap { above, below }) => assert_eq!([above, below], both),
        other => panic!("{:?}", other.err()),
    }
    drop(assembly);
    assert_eq!(lab.open(&refs(&members)).choose(&both).unwrap().len(), 2);
}

/// Nor a table's volume, which may lie on any part of a member.
#[test]
fn a_table_on_a_member_is_not_written_beside_the_array() {
    let lab = Lab::new();
    let members = Set::new("one", Level::Raid1, 0, 2).members(&lab);
    let part = lab.disk("part", 64 + members[0].sectors());
    part.write(0, &mbr(64, u32::try_from(members[0].sectors()).unwrap()));
    let choose = |volumes: &[&str], lines: &str, disks: &[&Disk], read_only: bool| {
        let table = lab.disk("table", 0);
        std::fs::write(&table.path, lines).unwrap();
        let plan = blockwork_volume::Plan {
            disks: disks.iter().map(|disk| disk.path.display().to_string()).collect(),
            tables: vec![table.path.to_str().unwrap().to_owned()],
            read_only,
            ..Default::default()
        };
        let volumes: Vec<String> = volumes.iter().map(|name| (*name).to_owned()).collect();
        let chosen = Assembly::open(plan).unwrap().choose(&volumes).map(drop);
        std::fs::remove_file(&table.path).unwrap();
        chosen
    };
    let disks: Vec<&Disk> = members.iter().collect();
    let on = |disk: &Disk| format!("t: 0 8 linear {} 0\nu: 0 8 linear dm/t 0\n", disk.path.display());
    for names in [["md/one", "dm/t"], ["dm/u", "md/one"]] {
        match choose(&names, &on(&members[0]), &disks, false) {
            Err(VolumeError::Shared { table, other, disk }) => {
                assert!(names.contains(&&*table) && table.starts_with("dm/"), "{table}");
                assert_eq!([&*other, &*disk], ["md/one", "disk/one-0"]);
            }
            other => panic!("{names:?}: {:?}", other.err()),
        }
    }
    choose(&["md/one", "dm/t"], &on(&members[0]), &disks, true).expect("both are only read");
    choose(&["dm/t"], &on(&members[0]), &disks, false).expect("who does so by itself knows why");
    // A disk, and an array on a partition of it.
    part.write(64 * 512, &members[0].bytes());
    let lies = choose(&["md/one", "dm/t"], &on(&part), &[&part, &members[1]], false);
    assert!(matches!(lies, Err(VolumeError::Shared { .. })), "{:?}", lies.err());
    let elsewhere = lab.disk("elsewhere", 64);
    let all = [disks[0], disks[1], &elsewhere];
    choose(&["md/one", "dm/t"], &on(&elsewhere), &all, false).expect("they have nothing in common");
}

#[test]
fn an_array_over_a_disk_that_is_only_read_is_only_read() {
    let lab = Lab::new();
    let members = Set::new("one", Level::Raid1, 0, 2).members(&lab);
    let disks = [format!("{},ro", members[0].path.display()), members[1].path.display().to_string()];
    let plan = blockwork_volume::Plan { disks: disks.to_vec(), ..Default::default() };
    let mut assembly = Assembly::open(plan).unwrap();
    let chosen = assembly.choose(&["md/one".to_owned()]).unwrap().remove(0);
    assert!(chosen.volume.read_only);
    assert!(chosen.read_only.unwrap().contains("/one-0,ro is read-only"));
}

/// A partition table with one partition.
fn mbr(start: u32, sectors: u32) -> [u8; 512] {
    let mut bytes = [0; 512];
    bytes[450] = 0xfd;
    bytes[454..458].copy_from_slice(&start.to_le_bytes());
    bytes[458..462].copy_from_slice(&sectors.to_le_bytes());
    bytes[510..].copy_from_slice(&[0x55, 0xaa]);
    bytes
}

#[test]
fn partitions_are_members_and_arrays_hold_partitions() {
    let lab = Lab::new();
    let set = Set::new("one", Level::Raid1, 0, 2);
    let inner = mbr(16, 100);
    let disks: Vec<Disk> = (0..2)
        .map(|place| {
            let member = set.member(&lab, &format!("m{place}"), place);
            member.write(DATA * 512, &inner);
            let disk = lab.disk(&format!("d{place}"), 64 + member.sectors());
            disk.write(0, &mbr(64, u32::try_from(member.sectors()).unwrap()));
            disk.write(64 * 512, &member.bytes());
            disk
        })
        .collect();
    let mut assembly = lab.open_for_writing(&refs(&disks));
    let part = volume(&mut assembly, "md/one/1");
    let bytes = content(&assembly, &part);
    assert!([sectors(0, 16, 100), sectors(1, 16, 100)].contains(&bytes));
    assert_eq!(all_names(&mut assembly), ["md/one", "md/one/1"]);
    let below = ["md/one/1", "disk/d1"].map(str::to_owned);
    assert!(matches!(assembly.choose(&below), Err(VolumeError::Overlap { .. })));
    let beside = ["md/one/1", "md/one"].map(str::to_owned);
    assert_eq!(assembly.choose(&beside).unwrap().len(), 2, "a partition and its disk are the same bytes");
}

/// A superblock 0.90 of a RAID1 of two, for a device of so many sectors.
fn old_superblock(place: u32, size_kib: u32) -> Vec<u8> {
    let mut words = [0u32; 1024];
    let values = [
        (0, 0xa92b_4efc),
        (2, 90),
        (5, 0x0123_4567),
        (6, 1_000_000_000),
        (7, 1),
        (8, size_kib),
        (9, 2),
        (10, 2),
        (11, 3),
        (13, 1),
        (14, 2),
        (15, 3),
        (32, 1_100_000_000),
        (33, 1),
        (34, 2),
        (35, 2),
        (39, 77),
    ];
    for (word, value) in values {
        words[word] = value;
    }
    for (at, number) in [(128, 0), (160, 1), (992, place)] {
        words[at..at + 5].copy_from_slice(&[number, 8, 16 * (number + 1), number, 6]);
    }
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    v0::fix_checksum(&mut bytes);
    bytes
}

#[test]
fn a_superblock_0_90_at_the_end_of_a_disk_belongs_to_the_partition_that_ends_there() {
    let lab = Lab::new();
    let (start, sectors) = (128u32, 1024u32);
    let disks: Vec<Disk> = (0..2)
        .map(|place| {
            let disk = lab.disk(&format!("d{place}"), u64::from(start + sectors));
            let at = v0::sector(disk.sectors()).unwrap();
            disk.number(place, start.into(), at - u64::from(start));
            disk.write(at * 512, &old_superblock(place, 400));
            disk.write(0, &mbr(start, sectors));
            disk
        })
        .collect();
    let mut assembly = lab.open_for_writing(&refs(&disks));
    let chosen = assembly.choose(&["md/3".to_owned()]).unwrap().remove(0);
    assert_eq!(chosen.read_only.unwrap(), "superblocks of version 0.90 are not written");
    assert_eq!(chosen.volume.sectors().0, 800);
    let bytes = content(&assembly, &chosen.volume);
    let whole = |disk| (128..928).flat_map(|sector| numbered(disk, sector)).collect::<Vec<_>>();
    assert!([whole(0), whole(1)].contains(&bytes));
    let graph = assembly.graph();
    let members: Vec<_> = graph.arrays[0].members.iter().map(|member| graph.device(member.device)).collect();
    assert!(members.iter().all(|device| matches!(device.kind, DeviceKind::Partition(_))));
    drop(assembly);
    // What does not fit the partition belongs to the whole disk.
    for (place, disk) in (0..).zip(&disks) {
        disk.write(v0::sector(disk.sectors()).unwrap() * 512, &old_superblock(place, 500));
    }
    let assembly = lab.open(&refs(&disks));
    let graph = assembly.graph();
    let device = graph.device(graph.arrays[0].members[0].device);
    assert!(matches!(device.kind, DeviceKind::Disk { .. }));
}

#[test]
fn a_superblock_1_0_at_the_end_of_a_partitioned_disk_is_its_partitions() {
    let lab = Lab::new();
    let set = Set::new("end", Level::Raid1, 0, 1);
    let disk = lab.disk("d", 128 + 512);
    let mut superblock = set.superblock(0);
    superblock.minor = Minor::V1_0;
    superblock.super_offset = Minor::V1_0.sector(512).unwrap();
    superblock.data_offset = 0;
    superblock.bblog_offset = -8;
    disk.number(0, 128, 256);
    disk.write((128 + superblock.super_offset) * 512, &superblock.encode_blocks(512));
    disk.write(0, &mbr(128, 512));
    let mut assembly = lab.open(&[&disk]);
    let array = volume(&mut assembly, "md/end");
    let expected: Vec<u8> = (128..384).flat_map(|sector| numbered(0, sector)).collect();
    assert!(content(&assembly, &array) == expected);
    assert_eq!(assembly.warnings(), [] as [&str; 0]);
}

#[test]
fn an_array_whose_member_lies_on_itself_has_no_such_member() {
    let lab = Lab::new();
    // On the mirror's data: a superblock that claims to be its other member.
    let set = Set { size: 512, ..Set::new("self", Level::Raid1, 0, 2) };
    let outer = set.member(&lab, "outer", 0);
    let inner = set.member(&lab, "inner", 1);
    outer.write(DATA * 512, &inner.bytes()[..(DATA as usize + 400) * 512]);
    let mut assembly = lab.open(&[&outer]);
    volume(&mut assembly, "md/self");
    warning(&assembly, "md/self: md superblock at 4096: data_size is 512 sectors from 64");
    let small = Set { size: 300, ..set.clone() };
    put_superblock(&outer, &set.superblock(0));
    outer.write(DATA * 512 + 4096, &small.superblock(1).encode_blocks(512));
    let assembly = lab.open(&[&outer]);
    warning(&assembly, "md/self: it claims to be a member of md/self, which has been assembled without it");
}

#[test]
fn an_array_goes_by_its_name_and_by_its_uuid_with_a_slash_or_a_colon() {
    let lab = Lab::new();
    let set = Set::new("host:data", Level::Raid1, 0, 2);
    let disks = set.members(&lab);
    let mut assembly = lab.open(&refs(&disks));
    let uuid = Uuid(set.uuid);
    for name in ["md/data".to_owned(), "md:data".into(), format!("md/{uuid}"), format!("md:{uuid}")] {
        assert_eq!(volume(&mut assembly, &name).name, "md/data", "{name}");
    }
}

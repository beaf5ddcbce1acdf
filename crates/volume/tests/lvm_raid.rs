//! RAID volumes of LVM: which legs are believed, by the superblocks in their metadata volumes. What is read is compared with
//! the legs' sectors, each of which bears its own number.

mod lab;

use blockwork_engine::Sector;
use blockwork_format::dm_raid::{self, Superblock};
use blockwork_format::md::Level;
use blockwork_format::md::bitmap::{BitmapSuperblock, Bits};
use blockwork_layer::md::MemberState;
use blockwork_volume::Assembly;
use lab::{
    Disk, EXTENT, Group, HIDDEN, Lab, PE_START, SEEN, commit, content, linear, lv, numbered, pv, refused,
    volume, warning,
};

/// Extents of a leg's data, which begins behind the two of its metadata.
const LEG: u64 = 4;

/// A disk for each leg of the volume `vg0/lv`, of a type with these keys.
fn legs(lab: &Lab, count: u8, kind: &str, extents: u64, keys: &str) -> Vec<Disk> {
    let disks: Vec<Disk> = (0..count).map(|leg| pv(lab, &format!("leg{leg}"), leg, 10)).collect();
    let mut lvs = Vec::new();
    for leg in 0..count {
        let id = u16::from(leg) * 2;
        let (meta, image) = (linear(leg, 0), linear(leg, 2));
        lvs.push(lv(&format!("lv_rmeta_{leg}"), id + 1, HIDDEN, &[("striped", 2, &meta)]));
        lvs.push(lv(&format!("lv_rimage_{leg}"), id + 2, HIDDEN, &[("striped", LEG, &image)]));
    }
    lvs.push(lv("lv", 100, SEEN, &[(kind, extents, keys)]));
    let pvs: Vec<(u8, u64)> = (0..count).map(|leg| (leg, 10)).collect();
    let text = Group { name: "vg0", id: 'g', seqno: 1, more: "", pvs: &pvs, lvs }.text();
    disks.iter().for_each(|disk| commit(disk, &text));
    disks
}

/// A mirror of two whose legs have superblocks and clean bitmaps.
fn mirror(lab: &Lab) -> Vec<Disk> {
    mirror_that_was(lab, LEG)
}

/// The same where these tell of an array of so many extents.
fn mirror_that_was(lab: &Lab, extents: u64) -> Vec<Disk> {
    let raids = "device_count = 2 region_size = 8 \
                 raids = [\"lv_rmeta_0\", \"lv_rimage_0\", \"lv_rmeta_1\", \"lv_rimage_1\"]";
    let disks = legs(lab, 2, "raid1", LEG, raids);
    for (disk, leg) in disks.iter().zip(0..) {
        let sectors = extents * EXTENT;
        put(disk, &Superblock { array_sectors: sectors, sectors, ..superblock(leg, 2, Level::Raid1) });
        let bitmap = BitmapSuperblock {
            events: 10,
            events_cleared: 10,
            ..BitmapSuperblock::new(Default::default(), sectors, 4096)
        };
        let bits = Bits::clean(bitmap.chunks());
        disk.write(PE_START * 512 + dm_raid::BITMAP_OFFSET, &[&bitmap.encode(), bits.as_bytes()].concat());
    }
    disks
}

fn superblock(leg: u32, legs: u32, level: Level) -> Superblock {
    Superblock {
        compat_features: Superblock::EXTENDED,
        num_devices: legs,
        array_position: leg,
        events: 10,
        failed_devices: Default::default(),
        disk_recovery_offset: dm_raid::IN_SYNC,
        array_resync_offset: dm_raid::IN_SYNC,
        level,
        layout: 0,
        stripe_sectors: 0,
        flags: 0,
        reshape_position: 0,
        new_level: i32::from(level).cast_unsigned(),
        new_layout: 0,
        new_stripe_sectors: 0,
        delta_disks: 0,
        array_sectors: LEG * EXTENT,
        data_offset: 0,
        new_data_offset: 0,
        sectors: LEG * EXTENT,
        incompat_features: 0,
    }
}

/// Writes the superblock of a leg's metadata volume, at the start of its disk's extents.
fn put(disk: &Disk, superblock: &Superblock) {
    disk.write(PE_START * 512, &superblock.encode());
}

/// Sectors of a leg's data.
fn data(leg: u32, start: u64, count: u64) -> Vec<u8> {
    let first = PE_START + 2 * EXTENT + start;
    (first..first + count).flat_map(|sector| numbered(leg, sector)).collect()
}

/// Whether the mirror is read from this leg only.
#[track_caller]
fn assert_read_from(assembly: &mut Assembly, leg: u32) {
    let mirror = volume(assembly, "vg0/lv");
    assert!(content(assembly, &mirror) == data(leg, 0, LEG * EXTENT), "{:?}", assembly.warnings());
}

#[test]
fn stripes_are_read_from_their_legs_in_turn() {
    let lab = Lab::new();
    let names = "raid0_lvs = [\"lv_rimage_0\", \"lv_rimage_1\"]";
    let disks = legs(&lab, 2, "raid0", 2 * LEG, &format!("stripe_count = 2 stripe_size = 8 {names}"));
    let mut assembly = lab.open_for_writing(&[&disks[1], &disks[0]]);
    let stripes = volume(&mut assembly, "vg0/lv");
    let expected: Vec<u8> =
        (0..LEG).flat_map(|row| [data(0, row * 8, 8), data(1, row * 8, 8)].concat()).collect();
    assert!(content(&assembly, &stripes) == expected);
    assert!(!stripes.read_only);
    drop(assembly);
    let said = refused(&mut lab.open(&[&disks[0]]), "vg0/lv");
    assert!(said.contains("too many of its legs are missing or out of date"), "{said}");
}

#[test]
fn a_mirror_whose_legs_agree_is_written_and_one_leg_is_enough() {
    let lab = Lab::new();
    let disks = mirror(&lab);
    let mut assembly = lab.open_for_writing(&[&disks[0], &disks[1]]);
    assert!(!volume(&mut assembly, "vg0/lv").read_only);
    assert_eq!(assembly.warnings(), [] as [&str; 0]);
    drop(assembly);
    for (disk, leg) in disks.iter().zip(0..) {
        let mut assembly = lab.open(&[disk]);
        assert_read_from(&mut assembly, leg);
        warning(&assembly, &format!("vg0/lv: leg {} is left out: lv_rimage_{}", 1 - leg, 1 - leg));
    }
}

#[test]
fn who_only_reads_leaves_out_legs_that_are_out_of_date_failed_new_or_swapped_with_the_reason() {
    type Change = fn(&mut Superblock, &mut Superblock);
    let changes: [(Change, &str); 3] = [
        (
            |_, other| other.events = 12,
            "lv_rimage_0: it is out of date (events 10, and the array is at 12); it is left out; whoever serves the volume to be written fills it",
        ),
        (
            |_, other| other.fail(0),
            "lv_rimage_0: it has failed, or was away, as the others say; it is left out; whoever",
        ),
        (|own, _| own.array_position = 1, "lv_rimage_0: its superblock is that of leg 1, expected 0"),
    ];
    for (change, why) in changes {
        let lab = Lab::new();
        let disks = mirror(&lab);
        let [mut own, mut other] = [0, 1].map(|leg| superblock(leg, 2, Level::Raid1));
        // The other one is the truth.
        other.events += 1;
        change(&mut own, &mut other);
        put(&disks[0], &own);
        put(&disks[1], &other);
        let mut assembly = lab.open(&[&disks[0], &disks[1]]);
        assert_read_from(&mut assembly, 1);
        warning(&assembly, why);
    }
    let lab = Lab::new();
    let disks = mirror(&lab);
    disks[0].write(PE_START * 512, &[0; 512]);
    let mut assembly = lab.open(&[&disks[0], &disks[1]]);
    assert_read_from(&mut assembly, 1);
    warning(&assembly, "lv_rimage_0: it has no superblock: it is new, and empty");
}

/// The states of the legs of a mirror whose first one was away, with these superblocks; and what is said of it.
fn states_of(own: &Superblock, truth: &Superblock) -> ([MemberState; 2], String) {
    let lab = Lab::new();
    let disks = mirror(&lab);
    put(&disks[0], own);
    put(&disks[1], truth);
    let mut assembly = lab.open_for_writing(&[&disks[0], &disks[1]]);
    // Never from the leg that was away.
    assert_read_from(&mut assembly, 1);
    assert!(!volume(&mut assembly, "vg0/lv").read_only);
    let (_, array) = assembly.graph().groups[0].raids().next().unwrap();
    let status = array.status();
    (std::array::from_fn(|leg| status.members[leg].state), warning(&assembly, "lv_rimage_0: it "))
}

#[test]
fn who_writes_fills_a_leg_that_was_away_by_the_bitmap_if_that_tells_all_that_it_lacks() {
    type Change = fn(&mut Superblock);
    let back = "it comes back, and is filled ";
    let (by_bitmap, whole) = ("where it was written to meanwhile", "from its start to its end");
    let changes: [(Change, &str); 5] = [
        (|_| {}, by_bitmap),
        (|own| own.events = 9, whole),
        (|own| own.disk_recovery_offset = 64, whole),
        (|own| own.disk_recovery_offset = 0, whole),
        (|own| (own.disk_recovery_offset, own.failed_devices[0]) = (0, 1), by_bitmap),
    ];
    for (change, how) in changes {
        let [mut own, mut truth] = [0, 1].map(|leg| superblock(leg, 2, Level::Raid1));
        change(&mut own);
        truth.events = 12;
        truth.fail(0);
        let (states, said) = states_of(&own, &truth);
        assert_eq!(states, [MemberState::Recovering(Sector(0)), MemberState::InSync]);
        assert!(said.ends_with(&format!("{back}{how}")), "{said}, expected {how}");
    }
}

#[test]
fn a_leg_that_was_used_without_the_others_is_left_out_so_that_it_keeps_what_only_it_has() {
    let [mut own, mut truth] = [0, 1].map(|leg| superblock(leg, 2, Level::Raid1));
    own.events = 12;
    own.fail(1);
    truth.events = 14;
    truth.fail(0);
    let (states, said) = states_of(&own, &truth);
    assert_eq!(states, [MemberState::Missing, MemberState::InSync]);
    assert!(
        said.contains("was used without the others since; it is left out, and what was written"),
        "{said}"
    );
}

#[test]
fn what_only_a_leg_says_that_is_being_filled_makes_no_resync_due() {
    let [mut own, mut truth] = [0, 1].map(|leg| superblock(leg, 2, Level::Raid1));
    truth.events = 12;
    truth.fail(0);
    // The power went when it was the first to say that writes may be under way.
    (own.events, own.disk_recovery_offset, own.array_resync_offset) = (13, 0, 0);
    own.fail(0);
    let lab = Lab::new();
    let disks = mirror(&lab);
    put(&disks[0], &own);
    put(&disks[1], &truth);
    let mut assembly = lab.open_for_writing(&[&disks[0], &disks[1]]);
    assert_read_from(&mut assembly, 1);
    let (_, array) = assembly.graph().groups[0].raids().next().unwrap();
    assert_eq!(array.status().resync_from, None);
    assert_eq!(array.status().members[0].state, MemberState::Recovering(Sector(0)));
}

#[test]
fn of_legs_of_as_many_events_those_are_believed_that_few_call_failed() {
    let raids = "device_count = 3 region_size = 8 \
                 raids = [\"lv_rmeta_0\", \"lv_rimage_0\", \"lv_rmeta_1\", \"lv_rimage_1\", \"lv_rmeta_2\", \"lv_rimage_2\"]";
    // One of them noted that another had failed, which a power cut let no other one hear of. Those were used without it then.
    for away in 0..3 {
        let lab = Lab::new();
        let disks = legs(&lab, 3, "raid1", LEG, raids);
        for (disk, leg) in disks.iter().zip(0..3) {
            let mut own = superblock(leg, 3, Level::Raid1);
            own.fail(if leg == away { (away as u16 + 1) % 3 } else { away as u16 });
            put(disk, &own);
        }
        let all: Vec<&Disk> = disks.iter().collect();
        let mut assembly = lab.open(&all);
        volume(&mut assembly, "vg0/lv");
        let (_, array) = assembly.graph().groups[0].raids().next().unwrap();
        let whole = |leg: usize| array.status().members[leg].state == MemberState::InSync;
        assert_eq!([0, 1, 2].map(whole), [0, 1, 2].map(|leg| leg != away as usize), "leg {away} was away");
    }
}

#[test]
fn a_stale_leg_is_not_read_also_where_another_one_is_missing() {
    let lab = Lab::new();
    let disks = (0..3).map(|leg| (leg, superblock(leg, 3, Level::Raid5)));
    let raids = "device_count = 3 stripe_size = 8 region_size = 8 \
                 raids = [\"lv_rmeta_0\", \"lv_rimage_0\", \"lv_rmeta_1\", \"lv_rimage_1\", \"lv_rmeta_2\", \"lv_rimage_2\"]";
    let made = legs(&lab, 3, "raid5_ls", 2 * LEG, raids);
    for (leg, found) in disks {
        let mut found = Superblock { layout: 2, stripe_sectors: 8, array_sectors: 2 * LEG * EXTENT, ..found };
        if leg > 0 {
            found.events = 12;
            found.fail(0);
        }
        put(&made[leg as usize], &found);
    }
    let said = refused(&mut lab.open_for_writing(&[&made[0], &made[1]]), "vg0/lv");
    assert!(said.contains("legs 0 (out of date), 2 (missing) of 3 are missing or out of date"), "{said}");
}

#[test]
fn a_leg_that_is_being_recovered_is_read_only_where_it_is_in_sync() {
    let lab = Lab::new();
    let disks = mirror(&lab);
    let recovering = Superblock { disk_recovery_offset: 16, ..superblock(0, 2, Level::Raid1) };
    put(&disks[0], &recovering);
    let mut assembly = lab.open(&[&disks[0], &disks[1]]);
    let mirror = volume(&mut assembly, "vg0/lv");
    assert!(content(&assembly, &mirror)[16 * 512..] == data(1, 16, LEG * EXTENT - 16));
    let said = refused(&mut lab.open(&[&disks[0]]), "vg0/lv");
    assert!(
        said.contains("some data has no copy in sync without legs 0 (not filled to its end), 1 (missing)"),
        "{said}"
    );
}

#[test]
fn what_is_new_of_a_mirror_that_has_grown_is_read_from_one_leg_and_can_be_written() {
    let lab = Lab::new();
    let disks = mirror_that_was(&lab, LEG - 1);
    // The legs' sectors bear different numbers: what is read from both in turns would be of both.
    let mut assembly = lab.open_for_writing(&[&disks[0], &disks[1]]);
    let mirror = volume(&mut assembly, "vg0/lv");
    assert!(!mirror.read_only);
    assert_eq!(mirror.sectors().0, LEG * EXTENT);
    let old = (LEG - 1) * EXTENT;
    assert!(content(&assembly, &mirror)[old as usize * 512..] == data(0, old, EXTENT));
    warning(&assembly, &format!("vg0/lv: it has grown since it was last in use: from sector {old} on"));
}

#[test]
fn a_bitmap_of_a_larger_volume_is_not_that_of_one_that_has_grown() {
    let lab = Lab::new();
    let disks = mirror_that_was(&lab, LEG - 1);
    // It claims to be of a size that is no smaller one of this volume.
    for disk in &disks {
        let bitmap = BitmapSuperblock::new(Default::default(), LEG * EXTENT + 8, 4096);
        disk.write(PE_START * 512 + dm_raid::BITMAP_OFFSET, &bitmap.encode());
    }
    let mut assembly = lab.open_for_writing(&[&disks[0], &disks[1]]);
    let chosen = assembly.choose(&["vg0/lv".to_owned()]).unwrap().remove(0);
    let said = chosen.read_only.unwrap();
    assert!(
        said.starts_with("its write-intent bitmap cannot be kept: md bitmap at 4096: sync_size is"),
        "{said}"
    );
}

#[test]
fn a_volume_whose_state_cannot_be_kept_is_only_read() {
    for (damage, why) in [
        (0, "Linux has not used it yet: its metadata volumes have no superblocks"),
        (dm_raid::BITMAP_OFFSET, "its write-intent bitmap cannot be kept: md bitmap at 4096: magic is"),
    ] {
        let lab = Lab::new();
        let disks = mirror(&lab);
        disks.iter().for_each(|disk| disk.write(PE_START * 512 + damage, &[0; 512]));
        let mut assembly = lab.open_for_writing(&[&disks[0], &disks[1]]);
        let chosen = assembly.choose(&["vg0/lv".to_owned()]).unwrap().remove(0);
        assert!(chosen.volume.read_only);
        let said = chosen.read_only.unwrap();
        assert!(said.starts_with(why), "{said}");
    }
}

#[test]
fn superblocks_of_another_array_than_the_groups_metadata_tells_of_are_refused() {
    let lab = Lab::new();
    let disks = mirror(&lab);
    for (disk, leg) in disks.iter().zip(0..) {
        put(disk, &superblock(leg, 3, Level::Raid1));
    }
    let said = refused(&mut lab.open(&[&disks[0], &disks[1]]), "vg0/lv");
    assert!(said.contains("tell of a raid1 of 3 legs, and the group's metadata of a raid1 of 2"), "{said}");
}

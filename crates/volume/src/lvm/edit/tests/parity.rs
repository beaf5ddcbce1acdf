//! New volumes of raid4, raid5 and raid6: what `lvcreate` of LVM 2.03.16 made of the same, and what neither makes.

use blockwork_format::dm_raid::{ParityType, Superblock};

use super::*;

fn shape(name: &str, stripes: u64) -> Shape {
    let kind = ParityType::of_segment(name).unwrap();
    Shape::Parity { kind, stripes, stripe_size: 128, region_size: REGION_DEFAULT }
}

#[test]
fn the_text_is_that_of_lvcreate() {
    let mut draft = group(&[20; 5]);
    let created = draft.create_volume(&new("r", Size::Extents(7), shape("raid5_la", 2))).unwrap();
    assert_eq!(
        created.rounded.as_deref(),
        Some("28 MiB is rounded up to whole extents of all stripes: 32 MiB")
    );
    draft.create_volume(&new("six", Size::Extents(7), shape("raid6", 3))).unwrap();
    let text = String::from_utf8(draft.text()).unwrap();
    for expected in [
        "segment_count = 1\n\nsegment1 {\nstart_extent = 0\nextent_count = 8\n\ntype = \"raid5_la\"\ndevice_count = 3\n\
         region_size = 4096\nstripe_size = 128\n\nraids = [\n\"r_rmeta_0\", \"r_rimage_0\",\n\"r_rmeta_1\", \"r_rimage_1\",\n\
         \"r_rmeta_2\", \"r_rimage_2\"\n]\n}\n}\n",
        "extent_count = 9\n\ntype = \"raid6\"\ndevice_count = 5\nregion_size = 4096\nstripe_size = 128\n\nraids = [\n\
         \"six_rmeta_0\", \"six_rimage_0\",",
    ] {
        let plain = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(plain(&text).contains(&plain(expected)), "{expected}\n{text}");
    }
    assert_eq!(lv(&draft, "r").flags.status, ["READ", "WRITE", "VISIBLE"]);
    assert_eq!(lv(&draft, "r_rimage_1").flags.status, ["READ", "WRITE"]);
}

#[test]
fn legs_lie_where_lvcreate_puts_them() {
    // On six disks of 204 MiB.
    let mut draft = group(&[50; 6]);
    for new in [
        linear("lin", 10),
        new("r5", Size::Extents(7), shape("raid5", 2)),
        new("r6", Size::Extents(10), shape("raid6", 3)),
        new("str", Size::Extents(9), STRIPED),
        new("r4", Size::Extents(9), shape("raid4", 3)),
        new("big", Size::Extents(40), shape("raid5_n", 2)),
    ] {
        draft.create_volume(&new).unwrap();
    }
    let legs: [(&str, u64, &[u64]); 4] = [
        ("r5", 4, &[10, 0, 0]),
        ("r6", 4, &[15, 5, 5, 0, 0]),
        ("r4", 3, &[25, 15, 10, 5]),
        ("big", 20, &[29, 19, 14]),
    ];
    for (name, extents, metas) in legs {
        for (leg, meta) in metas.iter().enumerate() {
            assert_eq!(
                segments(&draft, &format!("{name}_rmeta_{leg}")),
                [(0, 1, vec![(leg, *meta)])],
                "{name}"
            );
            let image = segments(&draft, &format!("{name}_rimage_{leg}"));
            assert_eq!(image, [(0, extents, vec![(leg, meta + 1)])], "{name}");
        }
    }
}

#[test]
fn hundredths_are_of_the_data_alone_and_as_much_as_fits() {
    let mut draft = group(&[50; 6]);
    draft.create_volume(&linear("lin", 20)).unwrap();
    let all = draft.create_volume(&new("all", Size::PercentFree(100), shape("raid5", 2))).unwrap();
    assert_eq!(all.extents, 158);
    // Six disks of 78 extents, of which each leg has one for its metadata.
    for (kind, stripes, size, extents) in [
        ("raid5", 2, Size::PercentFree(100), 310),
        ("raid5", 5, Size::PercentFree(100), 385),
        ("raid6", 3, Size::PercentFree(100), 231),
        ("raid5", 2, Size::PercentFree(50), 234),
        ("raid5", 5, Size::PercentGroup(50), 235),
        ("raid6", 3, Size::PercentGroup(50), 231),
        ("raid4", 2, Size::PercentGroup(50), 234),
    ] {
        let created = group(&[78; 6]).create_volume(&new("p", size, shape(kind, stripes))).unwrap();
        assert_eq!(created.extents, extents, "{kind} of {stripes}, {size}");
    }
}

#[test]
fn regions_are_no_smaller_than_chunks_and_metadata_has_bits_for_a_leg() {
    let mut draft = Draft::new_group("vg", 8, &[], author()).unwrap();
    for nth in 0..5 {
        let id = Uuid::from_compact(format!("pv{nth:030}").as_bytes()).unwrap();
        let device_hint = format!("disk{nth}");
        draft.add_pv(&NewPv { id, device_hint, dev_sectors: 2048 + 30_000 * 8, pe_start: 2048 }).unwrap();
    }
    let kind = ParityType::Raid5;
    let fine = Shape::Parity { kind, stripes: 2, stripe_size: 8, region_size: 8 };
    draft.create_volume(&new("fine", Size::Bytes(150 << 20), fine)).unwrap();
    assert_eq!(lv(&draft, "fine_rmeta_0").extents(), 3, "4 for the bits of a raid10 of that size");
    let region = |draft: &Draft, name: &str| match lv(draft, name).segments[0].kind {
        SegmentType::Raid { region_size, .. } => region_size,
        ref other => panic!("{other:?}"),
    };
    let mut draft = group(&[20; 3]);
    let coarse = Shape::Parity { kind, stripes: 2, stripe_size: 128, region_size: 32 };
    draft.create_volume(&new("coarse", Size::Extents(2), coarse)).unwrap();
    assert_eq!(region(&draft, "coarse"), 128);
}

/// What is written to the metadata volume of a leg, as far as its superblock and the bitmap's.
fn superblocks(draft: &Draft, name: &str) -> Vec<(Superblock, Vec<u8>)> {
    let vg = draft.group();
    let writes = draft.data.iter().filter_map(|write| match &write.content {
        Content::Bytes(bytes) => Some((write.pv, write.offset, bytes)),
        Content::Zeros(_) => None,
    });
    let all: Vec<_> = writes.collect();
    let legs = vg.lvs.iter().filter(|lv| lv.name.starts_with(&format!("{name}_rmeta_")));
    let of_leg = |leg: &Lv| {
        let blockwork_format::lvm2::vg::Area::Pv { pv, extent } = leg.segments[0].areas().0[0] else {
            panic!("on a PV")
        };
        let at = (vg.pvs[pv.0].id, (2048 + extent * EXTENT) * 512);
        let (.., bytes) = all.iter().find(|write| (write.0, write.1) == at).expect("it is written");
        (Superblock::decode(bytes).unwrap(), bytes[4096..].to_vec())
    };
    legs.map(of_leg).collect()
}

#[test]
fn superblocks_are_those_of_a_resync_that_has_to_begin() {
    let mut draft = group(&[20; 6]);
    // Level, layout, sectors of the array and of a leg as the kernel had them.
    for (name, stripes, level, layout, sectors) in [
        ("raid4", 2, 5, 4, (8 * EXTENT, 4 * EXTENT)),
        ("raid5", 2, 5, 2, (8 * EXTENT, 4 * EXTENT)),
        ("raid6", 3, 6, 8, (9 * EXTENT, 3 * EXTENT)),
        ("raid6_n_6", 4, 6, 5, (8 * EXTENT, 2 * EXTENT)),
    ] {
        draft.create_volume(&new(name, Size::Extents(7), shape(name, stripes))).unwrap();
        let legs = superblocks(&draft, name);
        for (nth, (leg, bitmap)) in (0..).zip(&legs) {
            assert_eq!(
                (i32::from(leg.level), leg.layout, leg.stripe_sectors),
                (level, layout, 128),
                "{name}"
            );
            assert_eq!((leg.array_sectors, leg.sectors), sectors, "{name}");
            assert_eq!(
                (leg.array_position, leg.num_devices, leg.array_resync_offset),
                (nth, legs.len() as u32, 0)
            );
            assert_eq!(bitmap[40..48], sectors.1.to_le_bytes(), "{name}: bits are for a leg");
            assert_eq!(bitmap[256], 0xff, "{name}: all of it is to be resynced");
        }
    }
    let asked = NewVolume { no_sync: true, ..new("not", Size::Extents(4), shape("raid5_rs", 2)) };
    draft.create_volume(&asked).unwrap();
    assert_eq!(lv(&draft, "not").flags.status, ["READ", "WRITE", "VISIBLE", "NOTSYNCED"]);
    assert_eq!(superblocks(&draft, "not")[2].0.array_resync_offset, u64::MAX);
}

#[test]
fn what_lvcreate_does_not_take_is_refused_with_the_option() {
    let mut draft = group(&[20; 6]);
    for (kind, stripes, expected) in [
        ("raid4", 1, "--stripes 1: expected 2 to 63"),
        ("raid5", 1, "--stripes 1: expected 2 to 63"),
        ("raid5_ls", 64, "--stripes 64: expected 2 to 63"),
        ("raid6", 2, "--stripes 2: expected 3 to 62"),
        ("raid6_nr", 63, "--stripes 63: expected 3 to 62"),
        ("raid5", u64::MAX, "expected 2 to 63"),
        ("raid5", 6, "2 extents (8 MiB) on each of 7 physical volumes are needed"),
        ("raid6", 5, "2 extents (8 MiB) on each of 7 physical volumes are needed"),
    ] {
        refused(draft.create_volume(&new("x", Size::Extents(5), shape(kind, stripes))), expected);
    }
    for (stripe_size, region_size, expected) in [
        (4, REGION_DEFAULT, "--stripesize 2 KiB: expected a power of two"),
        (12, REGION_DEFAULT, "--stripesize 6 KiB: expected a power of two"),
        (2 * EXTENT, REGION_DEFAULT, "--stripesize 8 MiB: expected a power of two from 4 KiB on, of which"),
        (128, 4, "--regionsize 2 KiB: expected a power of two"),
    ] {
        let odd = Shape::Parity { kind: ParityType::Raid5, stripes: 2, stripe_size, region_size };
        refused(draft.create_volume(&new("x", Size::Extents(4), odd)), expected);
    }
    for kind in ["raid6", "raid6_ls_6"] {
        let asked = NewVolume { no_sync: true, ..new("x", Size::Extents(6), shape(kind, 3)) };
        refused(draft.create_volume(&asked), "leave --nosync out");
    }
    assert!(draft.group().lvs.is_empty());
}

#[test]
fn a_volume_grows_by_whole_rows_and_is_renamed_and_removed_with_its_legs() {
    let mut draft = group(&[20; 5]);
    draft.create_volume(&new("r", Size::Extents(6), shape("raid6_zr", 3))).unwrap();
    assert_eq!(draft.resize_volume("r", Resize::MoreExtents(4), false).unwrap().to, 12);
    for leg in 0..5 {
        assert_eq!(segments(&draft, &format!("r_rimage_{leg}")), [(0, 4, vec![(leg, 1)])]);
    }
    draft.rename_volume("r", "other").unwrap();
    assert_eq!(lv(&draft, "other_rmeta_4").extents(), 1);
    draft.remove_volume("other").unwrap();
    assert_eq!(draft.free().total(), 100);
}

//! RAID volumes that grow: where their legs go on, and what keeps them from it.

use super::*;

/// The group with its text changed.
fn changed(draft: &Draft, change: impl Fn(&str) -> String) -> Draft {
    let text = String::from_utf8(draft.text()).unwrap();
    let other = change(&text);
    assert_ne!(other, text);
    Draft::of(Section::parse(other.as_bytes()).unwrap(), author()).unwrap()
}

#[test]
fn every_leg_goes_on_behind_its_own_end_or_elsewhere_on_its_own_pvs() {
    let mut draft = group(&[20, 20, 20]);
    draft.create_volume(&new("r", Size::Extents(4), RAID1)).unwrap();
    draft.create_volume(&linear("x", 2)).unwrap();
    let resized = draft.resize_volume("r", Resize::MoreExtents(3), false).unwrap();
    assert_eq!((resized.from, resized.to), (4, 7));
    // The linear volume is behind neither leg: it lies on the third PV, which has the largest run.
    draft.create_volume(&linear("y", 19)).unwrap();
    draft.resize_volume("r", Resize::MoreExtents(2), false).unwrap();
    let raid = lv(&draft, "r");
    assert_eq!((raid.extents(), raid.segments.len()), (9, 1));
    for leg in 0..2 {
        let meta = segments(&draft, &format!("r_rmeta_{leg}"));
        let image = segments(&draft, &format!("r_rimage_{leg}"));
        assert_eq!(meta, [(0, 1, vec![(leg, 0)])], "it stays");
        assert_eq!(image.iter().map(|(_, count, _)| count).sum::<u64>(), 9);
        assert!(image.iter().all(|(_, _, at)| at[0].0 == leg), "{image:?}");
        assert!(image.windows(2).all(|two| two[0].0 + two[0].1 == two[1].0), "{image:?}");
    }
}

#[test]
fn stripes_of_mirrors_grow_by_whole_stripes_and_stripes_without_mirrors_as_well() {
    let mut draft = group(&[20, 20, 20, 20]);
    draft.create_volume(&new("r", Size::Extents(4), RAID10)).unwrap();
    assert_eq!(draft.resize_volume("r", Resize::MoreExtents(3), false).unwrap().to, 8);
    for leg in 0..4 {
        assert_eq!(segments(&draft, &format!("r_rimage_{leg}")), [(0, 4, vec![(leg, 1)])]);
    }
    let stripes = |text: &str| {
        let mut text = text.replace("type = \"raid10\"", "type = \"raid0\"").replace("\"r_rmeta_", "\"none_");
        for nth in 0..4 {
            text = text.replace(&format!("\"none_{nth}\",\n"), "").replace(&format!("\"none_{nth}\", "), "");
        }
        text.replace("raids =", "raid0_lvs =")
            .replace("device_count", "stripe_count")
            .replace("extent_count = 8\n", "extent_count = 16\n")
    };
    let mut draft = changed(&draft, stripes);
    assert!(matches!(lv(&draft, "r").segments[0].kind, SegmentType::Raid { level: RaidLevel::Raid0, .. }));
    assert_eq!(draft.resize_volume("r", Resize::MoreExtents(1), false).unwrap().to, 20);
    assert_eq!(segments(&draft, "r_rimage_3"), [(0, 5, vec![(3, 1)])]);
}

#[test]
fn what_is_free_is_shared_by_the_copies() {
    let mut draft = group(&[20, 20, 11]);
    draft.create_volume(&new("r", Size::Extents(4), RAID1)).unwrap();
    draft.create_volume(&linear("x", 11)).unwrap();
    // 30 extents are free, 15 on each of the PVs of the legs.
    assert_eq!(draft.resize_volume("r", Resize::MorePercentFree(50), false).unwrap().to, 11);
    assert_eq!(draft.resize_volume("r", Resize::MorePercentFree(100), false).unwrap().to, 19);
    refused(draft.resize_volume("r", Resize::MorePercentFree(100), false), "one for each leg");
    refused(draft.resize_volume("r", Resize::MoreExtents(2), false), "2 extents (8 MiB) more on each of 2");
}

#[test]
fn legs_never_share_a_pv_and_a_raid_does_not_become_smaller() {
    let mut draft = group(&[6, 6, 30]);
    draft.create_volume(&new("r", Size::Extents(5), RAID1)).unwrap();
    let on = |draft: &Draft, leg: u64| segments(draft, &format!("r_rimage_{leg}"))[0].2[0].0;
    assert_ne!(on(&draft, 0), on(&draft, 1));
    draft.create_volume(&linear("x", 1)).unwrap();
    refused(
        draft.resize_volume("r", Resize::MoreExtents(8), false),
        "physical volumes, one for each leg, are needed",
    );
    for force in [false, true] {
        refused(draft.resize_volume("r", Resize::LessExtents(1), force), "use `lvreduce` to make it smaller");
    }
}

#[test]
fn a_pool_whose_parts_are_raids_grows_by_their_legs() {
    let mut draft = group(&[40, 40, 40]);
    draft.create_volume(&new("d", Size::Extents(4), RAID1)).unwrap();
    draft.create_volume(&new("m", Size::Extents(1), RAID1)).unwrap();
    draft.create_thin_pool(&thin::pool("pool", Size::Extents(4))).unwrap();
    let on_raids = |text: &str| text.replace("\"pool_tdata\"", "\"d\"").replace("\"pool_tmeta\"", "\"m\"");
    let mut draft = changed(&draft, on_raids);
    let extents = |draft: &Draft, name: &str| lv(draft, name).extents();
    let resized = draft.resize_volume("pool", Resize::MoreExtents(3), false).unwrap();
    assert_eq!((resized.from, resized.to), (4, 7));
    let data = ["pool", "d", "d_rimage_0", "d_rimage_1", "d_rmeta_0"];
    assert_eq!(data.map(|name| extents(&draft, name)), [7, 7, 7, 7, 1]);
    draft.grow_pool_metadata("pool", Resize::ToExtents(2)).unwrap();
    let map = ["m", "m_rimage_0", "m_rimage_1", "lvol0_pmspare", "pool"];
    assert_eq!(map.map(|name| extents(&draft, name)), [2, 2, 2, 2, 7]);
    for refuse in [Resize::LessExtents(1), Resize::ToExtents(1)] {
        refused(draft.resize_volume("pool", refuse, true), "a RAID volume only becomes larger here");
    }
    // What cannot grow is named, with the tool that does it.
    let mut odd = changed(&draft, |text| text.replacen("type = \"raid1\"", "type = \"zero\"", 1));
    refused(
        odd.resize_volume("pool", Resize::MoreExtents(1), false),
        "d: it is of type zero, and only linear",
    );
}

#[test]
fn a_bitmap_that_has_no_room_for_more_bits_and_odd_forms_are_refused() {
    let mut draft = group(&[4000, 4000]);
    // A bit for 4 KiB: an extent of 4 MiB for the bitmap has room for what 2^21 bits are allowed to tell of, 8 GiB.
    let fine = Shape::Raid1 { mirrors: 1, region_size: 8 };
    draft.create_volume(&new("r", Size::Extents(2048), fine)).unwrap();
    refused(draft.resize_volume("r", Resize::MoreExtents(1), false), "lvconvert --regionsize");

    let mut draft = group(&[40, 40]);
    draft.create_volume(&new("r", Size::Extents(4), RAID1)).unwrap();
    let with = |to: &str| changed(&draft, |text| text.replace("type = \"raid1\"", to));
    let mut odd = with("type = \"raid1+GLOW\"");
    refused(odd.resize_volume("r", Resize::MoreExtents(1), false), "of a form that is not resized here");
    // Of two legs, one has the parity.
    let mut parity = with("type = \"raid5_ls\"\nstripe_size = 128");
    assert_eq!(parity.resize_volume("r", Resize::MoreExtents(1), false).unwrap().to, 5);
}

//! What the checks of a VG refuse, and that they name the place; what LVM accepts is in `tests/lvm_tools.rs`.

use super::*;
use crate::ErrorKind;
use crate::lvm2::Style;

const EVERY_TYPE: &str = include_str!("../../../tests/data/lvm2/every_type.vg");

/// A VG of two PVs with 100 extents of 4 MiB each, and these LVs.
fn text(lvs: &str) -> String {
    let pv = |n: u32| {
        format!(
            "pv{n} {{ id = \"AAAAAA-PVid-0000-0000-0000-0000-00000{n}\" status = [] dev_size = 1000000 pe_start = 2048 \
             pe_count = 100 }}"
        )
    };
    format!(
        "vg {{ id = \"AAAAAA-VGid-0000-0000-0000-0000-000000\" seqno = 1 status = [\"READ\"] extent_size = 8192\n\
         physical_volumes {{ {} {} }}\nlogical_volumes {{\n{lvs}\n}} }}",
        pv(0),
        pv(1)
    )
}

fn lv(n: usize, name: &str, segments: &[&str]) -> String {
    let segments: Vec<String> =
        segments.iter().enumerate().map(|(i, segment)| format!("segment{} {{ {segment} }}", i + 1)).collect();
    format!(
        "{name} {{ id = \"AAAAAA-LVid-0000-0000-0000-0000-{n:06}\" status = [\"READ\", \"WRITE\", \"VISIBLE\"] \
         segment_count = {}\n{}\n}}\n",
        segments.len(),
        segments.join("\n")
    )
}

fn linear(start: u64, count: u64, on: &str, extent: u64) -> String {
    format!(
        "start_extent = {start} extent_count = {count} type = \"striped\" stripe_count = 1 stripes = [\"{on}\", {extent}]"
    )
}

fn read(text: &str) -> Result<VolumeGroup, FormatError> {
    VolumeGroup::from_text(text.as_bytes())
}

#[track_caller]
fn assert_refused(text: &str, expected: &str) {
    let error = read(text).expect_err("it contradicts the format").to_string();
    assert!(error.contains(expected), "{error}\nexpected {expected}");
}

#[test]
fn every_type_is_read_with_its_fields_and_references() {
    let vg = read(EVERY_TYPE).unwrap();
    let lv = |name: &str| vg.lv(name).unwrap();
    let kind = |name: &str| &vg.lvs[lv(name).0].segments[0].kind;
    let pv = |n: usize, extent: u64| Area::Pv { pv: PvIndex(n), extent };
    assert_eq!((vg.name.as_str(), vg.seqno, vg.extent_sectors), ("every", 7, 8192));
    assert_eq!(vg.origin.description.as_deref(), Some("by hand: \"every type\" \\ one each"));
    assert_eq!((vg.origin.host.as_deref(), vg.origin.time), (Some("example"), Some(1_700_000_000)));
    assert_eq!(vg.pvs[3].device_hint.as_deref(), Some("/dev/none3"));
    let lost = read(&EVERY_TYPE.replace("/dev/none3", "[unknown]")).unwrap();
    assert_eq!(lost.pvs[3].device_hint, None, "where LVM says that it does not know, there is no hint");
    assert_eq!((vg.pvs[3].pe_start, vg.pvs[3].pe_count, vg.pvs[3].dev_sectors), (2048, 127, Some(1_048_576)));
    assert_eq!(vg.lvs[lv("lin").0].tags, ["db", "fast"]);
    assert_eq!(vg.lv_sectors(lv("lin")), 6 * 8192);
    assert_eq!(*kind("lin"), SegmentType::Linear(pv(0, 0)));
    let stripes = vec![pv(0, 4), pv(1, 2), pv(2, 0)];
    assert_eq!(*kind("str"), SegmentType::Striped { stripe_size: 128, stripes });
    assert_eq!(
        *kind("r10"),
        SegmentType::Raid {
            level: RaidLevel::Raid10,
            images: ["r10_rimage_0", "r10_rimage_1", "r10_rimage_2", "r10_rimage_3"].map(lv).to_vec(),
            metas: ["r10_rmeta_0", "r10_rmeta_1", "r10_rmeta_2", "r10_rmeta_3"].map(lv).to_vec(),
            stripe_size: 128,
            region_size: 4096,
            data_copies: Some(2),
            reshape_extents: 0,
        }
    );
    let SegmentType::Raid { level, images, metas, .. } = kind("r0") else { panic!("a RAID") };
    assert_eq!((*level, images.len(), metas.len()), (RaidLevel::Raid0, 2, 0));
    assert_eq!(
        *kind("pool"),
        SegmentType::ThinPool {
            metadata: lv("pool_tmeta"),
            data: lv("pool_tdata"),
            transaction_id: 3,
            chunk_size: 128,
            discards: Some("passdown".into()),
            zero_new_blocks: true,
            messages: vec![Message::Create(lv("thinsnap"))],
        }
    );
    assert_eq!(
        *kind("thinsnap"),
        SegmentType::Thin {
            pool: lv("pool"),
            transaction_id: 2,
            device_id: 2,
            origin: Some(lv("thin")),
            external_origin: None,
            merge: None,
        }
    );
    let nothing: Vec<_> =
        vg.lvs[lv("nothing").0].segments.iter().map(|segment| segment.kind.clone()).collect();
    assert_eq!(nothing, [SegmentType::Zero, SegmentType::Error]);
    let mirrors = ["mir_mimage_0", "mir_mimage_1"].map(|name| Area::Lv { lv: lv(name), extent: 0 });
    let mirror = SegmentType::Mirror {
        region_size: 1024,
        log: Some(lv("mir_mlog")),
        images: mirrors.to_vec(),
        extents_moved: None,
    };
    assert_eq!(*kind("mir"), mirror);
}

#[test]
fn a_snapshot_is_seen_by_the_name_of_its_store_and_what_ties_it_is_not() {
    let vg = read(EVERY_TYPE).unwrap();
    let visible = vg.visible();
    let seen = |name: &str| visible[vg.lv(name).unwrap().0];
    assert!(seen("origin") && seen("snap") && !seen("snapshot0") && !seen("pool_tdata"));
    let snapshots: Vec<Snapshot> = vg.snapshots().collect();
    assert_eq!(snapshots.len(), 1);
    assert_eq!((snapshots[0].chunk_size, snapshots[0].merging), (16, false));

    let merging = read(&EVERY_TYPE.replace("cow_store", "merging_store")).unwrap();
    assert!(!merging.visible()[vg.lv("snap").unwrap().0]);
}

#[test]
fn keys_and_types_of_the_future_are_read_over_and_kept() {
    let newer = EVERY_TYPE
        .replace("type = \"zero\"", "type = \"hologram+NEWER\"\nlayers = [1, 2]")
        .replace("\tmax_lv = 0", "\tmax_lv = 0\n\tcolour = \"blue\"\n\tshape {\n\t\tround = 0.5\n\t}")
        .replacen("status = [\"ALLOCATABLE\"]", "status = [\"ALLOCATABLE\", \"GLOWING\"]", 1)
        .replacen("flags = []", "flags = [\"HUMMING\"]", 1);
    let vg = read(&newer).unwrap();
    let segment = &vg.lvs[vg.lv("nothing").unwrap().0].segments[0];
    assert_eq!((&segment.kind, segment.type_name.as_str()), (&SegmentType::Unknown, "hologram"));
    assert_eq!(segment.type_flags, ["NEWER"]);
    assert_eq!(vg.unknown_status(), [("every/physical_volumes/pv0".to_owned(), "GLOWING".to_owned())]);
    assert!(vg.flags.has("HUMMING"));
    let printed = Section::parse(newer.as_bytes()).unwrap().print(Style::File);
    let printed = String::from_utf8(printed).unwrap();
    for kept in ["layers = [1, 2]\n", "colour = \"blue\"\n", "round = 0.5\n", "\"GLOWING\"", "\"HUMMING\""] {
        assert!(printed.contains(kept), "{kept} of {printed}");
    }
    assert_eq!(read(&printed).unwrap().seqno, vg.seqno);
}

#[test]
fn an_error_names_line_and_section() {
    let error = read(&EVERY_TYPE.replace("\"pv1\", 0", "\"pv7\", 0")).unwrap_err();
    assert_eq!(
        error.to_string(),
        "LVM2 metadata, line 97: stripes is \"pv7\" (in every/logical_volumes/lin/segment2), expected the name of a PV or an LV"
    );
}

#[test]
fn what_is_missing_or_of_the_wrong_kind_is_refused() {
    for (from, to, expected) in [
        ("\tseqno = 7\n", "", "seqno is missing (in every)"),
        ("\textent_size = 8192\n", "\textent_size = 0\n", "extent size is extent_size 0"),
        ("seqno = 7", "seqno = -7", "seqno is -7 (in every), expected at least 0"),
        ("seqno = 7", "seqno = \"7\"", "seqno is \"7\" (in every), expected a whole number"),
        ("seqno = 7", "seqno = [7]", "seqno is an array (in every), expected one value"),
        ("version = 1", "version = 2", "version is 2 (in the text), expected 1"),
        ("Text Format Volume Group", "Other", "contents is another one"),
        ("format = \"lvm2\"", "format = \"lvm1\"", "format is lvm1 (in every), expected lvm2"),
        ("every {", "every { }\nother {", "volume group is 2 sections"),
        ("every {", "\"e very\" {", "name is e very"),
        ("physical_volumes {", "physical_volumes = 1 x {", "physical_volumes is no section"),
        ("VGid-0000-0000-0000-0000-000000", "VGid-0000-0000-0000-0000-00000", "id is AAAAAA-VGid"),
        ("pe_count = 127", "pe_count = 4294967296", "pe_count is 4294967296 (in every/physical_volumes/"),
        ("pe_start = 2048", "pe_start = 18014398509481983", "size of a PV is "),
        (
            "extent_count = 9",
            "extent_count = 4294967296",
            "extent_count is 4294967296 (in every/logical_volumes/",
        ),
        ("segment_count = 3", "segment_count = 2", "segment_count is 2 (in every/logical_volumes/lin)"),
        ("segment_count = 1", "segment_count = 0", "segment_count is 0"),
        ("stripe_count = 3", "stripe_count = 2", "stripes is 6 names and extents"),
        ("stripe_count = 3", "stripe_count = 4097", "stripe_count is 4097"),
        ("stripe_count = 3", "stripe_count = 0", "stripe_count is 0"),
        ("stripe_size = 128", "stripe_size = 0", "stripe_size is 0"),
        (
            "stripe_size = 128",
            "stripe_size = 100",
            "stripe_size is 100 (in every/logical_volumes/str/segment1)",
        ),
        ("extent_count = 9", "extent_count = 10", "extent_count is 10"),
        ("device_count = 2", "device_count = 3", "raids is 4 names"),
        ("data_copies = 2", "data_copies = 5", "data_copies is 5"),
        ("\"r1_rimage_0\",", "\"r1\",", "LV is made of itself (in every/logical_volumes/r1)"),
        ("\"r1_rimage_0\",", "\"nobody\",", "raids is \"nobody\""),
        ("cow_store = \"snap\"", "cow_store = \"none\"", "cow_store is none"),
        (
            "cow_store = \"snap\"",
            "cow_store = \"snap\"\nmerging_store = \"snap\"",
            "merging_store is beside a cow_store",
        ),
        ("create = \"thinsnap\"", "destroy = 1", "message is another one"),
        ("type = \"zero\"", "type = 1", "type is 1"),
    ] {
        assert!(EVERY_TYPE.contains(from), "{from}");
        let text = EVERY_TYPE.replacen(from, to, 1);
        let error = read(&text).expect_err(to).to_string();
        assert!(error.contains(expected), "{to}: {error}");
    }
}

#[test]
fn the_extents_of_a_raid10_that_was_reshaped_count_the_room_of_each_leg_for_that() {
    // Made by lvconvert of four legs of 12 extents: 36 extents of data, 2 copies each, and 4 extents in each leg beside.
    let raid = |extents: u64, legs: u64| {
        let names: Vec<String> = (0..legs).map(|n| format!("\"m{n}\", \"i{n}\"")).collect();
        let segment = format!(
            "start_extent = 0 extent_count = {extents} type = \"raid10+RESHAPE\" device_count = {legs} data_copies = 2 \
             stripe_size = 32 region_size = 1024 reshape_count = 4 raids = [{}]",
            names.join(", ")
        );
        let leg = |n: u64| {
            let (pv, from) = if n < 3 { ("pv0", n * 20) } else { ("pv1", (n - 3) * 20) };
            let data = lv(10 + n as usize, &format!("i{n}"), &[&linear(0, 16, pv, from)]);
            data + &lv(20 + n as usize, &format!("m{n}"), &[&linear(0, 1, pv, from + 16)])
        };
        text(&(lv(1, "r10", &[&segment]) + &(0..legs).map(leg).collect::<String>()))
    };
    let vg = read(&raid(60, 6)).unwrap();
    let SegmentType::Raid { reshape_extents, .. } = vg.lvs[vg.lv("r10").unwrap().0].segments[0].kind else {
        panic!("a RAID")
    };
    assert_eq!(reshape_extents, 4);
    assert_refused(
        &raid(61, 6),
        "leg of a RAID is 16 extents of i0 (in vg/logical_volumes/r10/segment1), expected at least 17",
    );
}

#[test]
fn extents_are_inside_their_volume_contiguous_and_used_once() {
    read(&text(&lv(1, "a", &[&linear(0, 60, "pv0", 40), &linear(60, 40, "pv1", 0)]))).unwrap();
    let areas = |segments: &[String]| {
        let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
        text(&(lv(1, "a", &segments) + &lv(2, "b", &[&linear(0, 10, "pv1", 50)])))
    };
    assert_refused(
        &areas(&[linear(0, 61, "pv0", 40)]),
        "area is 61 extents from 40 of pv0 (in vg/logical_volumes/a/segment1)",
    );
    assert_refused(
        &areas(&[linear(0, 1, "pv0", u64::MAX >> 1)]),
        "area is 1 extents from 9223372036854775807",
    );
    assert_refused(&areas(&[linear(0, 10, "pv0", 0), linear(11, 1, "pv0", 20)]), "start_extent is 11");
    assert_refused(&areas(&[linear(0, 10, "pv0", 0), linear(9, 1, "pv0", 20)]), "start_extent is 9");
    assert_refused(&areas(&[linear(1, 10, "pv0", 0)]), "start_extent is 1 ");
    assert_refused(&areas(&[linear(0, 0, "pv0", 0)]), "extent_count is 0");
    assert_refused(&areas(&[linear(0, 10, "pv0", 0), linear(10, 10, "pv0", 9)]), "area is extent 9 of pv0");
    assert_refused(
        &areas(&[linear(0, 10, "pv1", 41)]),
        "area is extent 50 of pv1 (in vg/logical_volumes/b/segment1)",
    );
    read(&areas(&[linear(0, 10, "pv1", 40)])).unwrap();
    let zeros = |count: u64| {
        text(&lv(1, "a", &[&format!("start_extent = 0 extent_count = {count} type = \"zero\"")]))
    };
    read(&zeros(4_294_967_295)).unwrap();
    assert_refused(
        &zeros(4_294_967_296),
        "extent_count is 4294967296 (in vg/logical_volumes/a/segment1), expected 1 to",
    );
    let zeros_twice = |extent: u64, counts: [u64; 2]| {
        let zeros =
            |start: u64, count: u64| format!("start_extent = {start} extent_count = {count} type = \"zero\"");
        let of_two = text(&lv(1, "a", &[&zeros(0, counts[0]), &zeros(counts[0], counts[1])]));
        of_two.replace("extent_size = 8192", &format!("extent_size = {extent}"))
    };
    read(&zeros_twice(8192, [4_294_967_290, 5])).unwrap();
    assert_refused(&zeros_twice(8192, [4_294_967_290, 6]), "extents of an LV is 4294967296");
    read(&zeros_twice(1 << 23, [1, 2_147_483_646])).unwrap();
    assert_refused(&zeros_twice(1 << 23, [1, 2_147_483_647]), "extents of an LV is 2147483648");
    // Each PV is what LVM reads, and the sum of all is not asked.
    let two = text("").replace("pe_count = 100", "pe_count = 4294967295");
    assert_eq!(read(&two).unwrap().pvs[1].pe_count, 4_294_967_295);
}

#[test]
fn an_lv_is_not_made_of_itself_and_stacks_have_a_limit() {
    let own = lv(1, "a", &[&linear(0, 10, "a", 0)]);
    assert_refused(&text(&own), "line 4: LV is made of itself (in vg/logical_volumes/a)");
    let circle = lv(1, "a", &[&linear(0, 10, "b", 0)]) + &lv(2, "b", &[&linear(0, 10, "c", 0)]);
    let circle = circle + &lv(3, "c", &[&linear(0, 10, "a", 0)]);
    assert_refused(&text(&circle), "LV is made of itself");
    let pool = "start_extent = 0 extent_count = 1 type = \"thin-pool\" metadata = \"t\" pool = \"p0\" transaction_id = 0 \
                chunk_size = 128";
    let thin = "start_extent = 0 extent_count = 1 type = \"thin\" thin_pool = \"p\" transaction_id = 0 device_id = 1";
    let pools = lv(1, "p", &[pool]) + &lv(2, "t", &[thin]) + &lv(3, "p0", &[&linear(0, 1, "pv0", 0)]);
    assert_refused(&text(&pools), "LV is made of itself");

    let stack = |height: usize| {
        let on = |n: usize| if n == 0 { "pv0".to_owned() } else { format!("lv{}", n - 1) };
        text(&(0..height).map(|n| lv(n, &format!("lv{n}"), &[&linear(0, 10, &on(n), 0)])).collect::<String>())
    };
    read(&stack(STACK_MAX)).unwrap();
    let error = read(&stack(STACK_MAX + 1)).unwrap_err();
    assert_eq!((error.kind, error.field), (ErrorKind::Limit, "LVs on top of each other"));
    read(&stack(5000)).unwrap_err();
}

#[test]
fn identifiers_are_unique() {
    let twins = lv(1, "a", &[&linear(0, 1, "pv0", 0)]) + &lv(1, "b", &[&linear(0, 1, "pv0", 1)]);
    assert_refused(&text(&twins), "as that of a (in vg/logical_volumes/b), expected an id of its own");
    assert_refused(&text("").replace("-000001", "-000000"), "as that of pv0 (in vg/physical_volumes/pv1)");
}

#[test]
fn a_hundred_thousand_segments_are_read_and_a_million_refused_by_a_limit() {
    let text_of = |segments: u64| {
        let zero = |n: u64| {
            format!("segment{} {{\nstart_extent = {n}\nextent_count = 1\ntype = \"zero\"\n}}\n", n + 1)
        };
        let all: String = (0..segments).map(zero).collect();
        text(&format!(
            "big {{ id = \"AAAAAA-LVid-0000-0000-0000-0000-000001\" status = [] segment_count = {segments} {all} }}"
        ))
    };
    let vg = read(&text_of(100_000)).unwrap();
    assert_eq!((vg.lvs[0].segments.len(), vg.lvs[0].extents()), (100_000, 100_000));
    let error = read(&text_of(1_000_000)).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Limit, "{error}");
}

#[test]
fn two_thousand_lvs_on_two_hundred_pvs_are_read() {
    let pv = |n: u32| {
        format!(
            "pv{n} {{ id = \"AAAAAA-PVid-0000-0000-0000-0000-{n:06}\" status = [] pe_start = 2048 pe_count = 100 }}\n"
        )
    };
    let pvs: String = (0..200).map(pv).collect();
    let lvs: String = (0..2000u64)
        .map(|n| {
            let on = format!("pv{}", n % 200);
            lv(usize::try_from(n).unwrap(), &format!("lv{n}"), &[&linear(0, 10, &on, n / 200 * 10)])
        })
        .collect();
    let vg = read(&format!(
        "vg {{ id = \"AAAAAA-VGid-0000-0000-0000-0000-000000\" seqno = 1 status = [] extent_size = 8192\n\
         physical_volumes {{ {pvs} }}\nlogical_volumes {{\n{lvs}\n}} }}"
    ))
    .unwrap();
    assert_eq!((vg.pvs.len(), vg.lvs.len(), vg.visible().len()), (200, 2000, 2000));
}

//! `blockwork scan` on md arrays and LVM2 groups: disks that are laid out with the encoders whose output mdadm and LVM take
//! (the tests of `blockwork-format` show that). What it shows, that it never writes, and how much it reads.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;

use crate::support;
use crate::support::fs::print_of;
use crate::support::nbd::{checksum, fio};
use crate::support::{Scratch, noise, run, tool};
use blockwork_format::lvm2::{
    AreaHeader, DiskArea, Extension, Label, PvHeader, RawLocation, Uuid as LvmUuid,
};
use blockwork_format::md::v1::{Minor, Reshape, SLOTS_OF_MDADM, Superblock};
use blockwork_format::md::{IN_SYNC, Level, Role, SetName, Time, Uuid};
use blockwork_format::{Piece, Source};
use serde_json::{Value, json};

const SECTOR: u64 = 512;
/// Of the groups made here, sectors.
const EXTENT: u64 = 8;
const PE_START: u64 = 2048;
/// Where the data of members begins, sectors.
const DATA: u64 = 2048;

/// A disk that is written to before it is scanned.
struct Disk {
    path: String,
    file: File,
}

impl Disk {
    fn new(scratch: &Scratch, name: &str, sectors: u64) -> Disk {
        let path = scratch.sparse(name, sectors * SECTOR);
        let file = OpenOptions::new().read(true).write(true).open(&path).expect("it was made");
        Disk { path, file }
    }

    fn write(&self, offset: u64, bytes: &[u8]) {
        self.file.write_all_at(bytes, offset).expect("it can be written");
    }
}

impl Source for Disk {
    fn size(&self) -> u64 {
        self.file.metadata().expect("it has").len()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> std::io::Result<()> {
        self.file.read_exact_at(buf, offset)
    }
}

fn lvm_uuid(kind: char, nr: usize) -> LvmUuid {
    LvmUuid::from_compact(format!("{kind}{nr:031}").as_bytes()).expect("32 characters")
}

/// A physical volume with one metadata area, as LVM makes it but for the area's size, which a large group needs.
fn pv(scratch: &Scratch, name: &str, nr: usize, extents: u64) -> Disk {
    let disk = Disk::new(scratch, name, PE_START + extents * EXTENT);
    let area = DiskArea { offset: 4096, size: PE_START * SECTOR - 4096 };
    let pv = PvHeader {
        id: lvm_uuid('P', nr),
        device_bytes: disk.size(),
        data_areas: vec![DiskArea { offset: PE_START * SECTOR, size: 0 }],
        metadata_areas: vec![area],
        extension: Some(Extension { version: 2, flags: Extension::IN_USE, bootloader_areas: Vec::new() }),
    };
    disk.write(SECTOR, &Label { sector: 1, pv }.encode().expect("a label"));
    disk.write(area.offset, &AreaHeader::new(area).expect("an area").encode());
    disk
}

fn commit(disk: &Disk, text: &str) {
    let label = Label::find(disk).expect("it can be read").expect("a label").label;
    let area = label.pv.metadata_areas[0];
    let mut header = AreaHeader::read(disk, area).expect("an area");
    let place = header.place(text.as_bytes()).expect("room for the text");
    for Piece { offset, bytes } in header.pieces(&place, text.as_bytes()).expect("pieces") {
        disk.write(offset, &bytes);
    }
    header.slots = [place, RawLocation::default()];
    disk.write(area.offset, &header.encode());
}

/// The text of a group with `pvs` physical volumes of so many extents.
fn group(name: &str, pvs: usize, extents: u64, lvs: &str) -> String {
    let pv = |nr| {
        let id = lvm_uuid('P', nr);
        format!(
            "pv{nr} {{ id = \"{id}\" device = \"/dev/sd{nr}\" status = [\"ALLOCATABLE\"] pe_start = {PE_START} \
             pe_count = {extents} }}\n"
        )
    };
    let pvs: String = (0..pvs).map(pv).collect();
    let id = lvm_uuid('V', 0);
    format!(
        "{name} {{ id = \"{id}\" seqno = 7 format = \"lvm2\" status = [\"RESIZEABLE\", \"READ\", \"WRITE\"] \
         extent_size = {EXTENT}\nphysical_volumes {{\n{pvs}}}\nlogical_volumes {{\n{lvs}}}\n}}\n\
         contents = \"Text Format Volume Group\"\nversion = 1\n"
    )
}

/// The section of a logical volume of one segment.
fn lv(nr: usize, name: &str, status: &str, extents: u64, segment: &str) -> String {
    let id = lvm_uuid('L', nr);
    format!(
        "{name} {{ id = \"{id}\" status = [\"READ\", \"WRITE\"{status}] segment_count = 1\nsegment1 {{ start_extent = 0 \
         extent_count = {extents} {segment} }} }}\n"
    )
}

const SEEN: &str = ", \"VISIBLE\"";

fn linear(pv: usize, extent: u64) -> String {
    format!("type = \"striped\" stripe_count = 1 stripes = [\"pv{pv}\", {extent}]")
}

/// A member of a RAID10 n2 of 4, as mdadm makes it.
fn member(scratch: &Scratch, name: &str, place: u16, events: u64) -> Disk {
    const SIZE: u64 = 2048;
    let mut roles = vec![Role::Spare; SLOTS_OF_MDADM];
    (0..4).for_each(|place| roles[usize::from(place)] = Role::Active(place));
    let superblock = Superblock {
        minor: Minor::V1_2,
        features: Default::default(),
        set_uuid: Uuid([0x5a; 16]),
        set_name: SetName::new("host:data").expect("short"),
        ctime: Time::new(1_700_000_000, 0),
        level: Level::Raid10,
        layout: 0x102,
        size: SIZE,
        chunk_sectors: 128,
        raid_disks: 4,
        bitmap_offset: 0,
        reshape: Reshape::default(),
        data_offset: DATA,
        data_size: SIZE,
        super_offset: 8,
        recovery_offset: 0,
        dev_number: place.into(),
        corrected_errors: 0,
        device_uuid: Uuid([u8::try_from(place).expect("below 4") + 1; 16]),
        devflags: 0,
        bblog_shift: 0,
        bblog_sectors: 0,
        bblog_offset: 0,
        utime: Time::new(1_700_000_001, 0),
        events,
        resync_offset: IN_SYNC,
        logical_block_size: 0,
        roles,
        reserved: [0; 32],
    };
    let disk = Disk::new(scratch, name, DATA + SIZE);
    disk.write(8 * SECTOR, &superblock.encode_blocks(512));
    disk
}

fn paths(disks: &[Disk]) -> Vec<&str> {
    disks.iter().map(|disk| &*disk.path).collect()
}

fn tree(scratch: &Scratch, disks: &[Disk]) -> String {
    run(scratch.blockwork(["scan"]).args(paths(disks)))
}

fn report(scratch: &Scratch, disks: &[Disk]) -> Value {
    let said = run(scratch.blockwork(["scan", "--json"]).args(paths(disks)));
    serde_json::from_str(&said).expect("JSON")
}

/// The line of a device, its cells one blank apart.
#[track_caller]
fn line(shown: &str, name: &str) -> String {
    let cells = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    let named = |line: &&str| line.trim_start_matches([' ', '|', '-', '`']).starts_with(&format!("{name} "));
    let found: Vec<String> = shown.lines().filter(named).map(cells).collect();
    assert_eq!(found.len(), 1, "{name} in\n{shown}");
    found[0].trim_start_matches(['|', '-', '`', ' ']).to_owned()
}

#[test]
fn an_array_has_one_line_and_its_members_name_it() {
    let scratch = Scratch::new();
    let disks = [
        member(&scratch, "a", 0, 20),
        member(&scratch, "b", 1, 20),
        member(&scratch, "c", 2, 17),
        member(&scratch, "d", 3, 20),
    ];
    let shown = tree(&scratch, &disks);
    assert_eq!(line(&shown, "disk/a"), "disk/a 2M disk member 0 of md/data");
    assert_eq!(line(&shown, "disk/c"), "disk/c 2M disk out-of-date member 2 of md/data (events 17)");
    assert_eq!(line(&shown, "md/data"), "md/data 2M raid10 near=2 64K [4/3], clean, degraded");
    assert_eq!(line(&shown, "[member 2]"), "[member 2] missing");
    let report = report(&scratch, &disks);
    let array = &report["arrays"][0];
    let state =
        |place: usize| (array["members"][place]["state"].clone(), array["members"][place]["volume"].clone());
    assert_eq!(state(0), (json!("in_sync"), json!("disk/a")));
    assert_eq!(state(2), (json!("missing"), Value::Null));
    assert_eq!(state(4), (json!("out_of_date"), json!("disk/c")));
    assert_eq!(array["members"][4]["events"], 17);
    assert_eq!(
        (&array["degraded"], &array["clean"], &array["events"]),
        (&json!(1), &json!(true), &json!(20))
    );
    assert_eq!(array["array_uuid"], "5a5a5a5a:5a5a5a5a:5a5a5a5a:5a5a5a5a");
    assert_eq!((&array["name"], &array["layout"]), (&json!("host:data"), &json!("near=2")));
    assert_eq!(report["disks"][3]["md_member"]["device_uuid"], "04040404:04040404:04040404:04040404");
}

#[test]
fn what_lacks_too_many_members_says_why_it_is_not_served() {
    let scratch = Scratch::new();
    let disks = [member(&scratch, "a", 0, 20), member(&scratch, "b", 1, 20)];
    let shown = tree(&scratch, &disks);
    assert_eq!(line(&shown, "md/data"), "md/data 2M raid10 near=2 64K [4/2], clean, degraded, not served");
    assert!(shown.contains("\nmd/data: not served: members 2, 3 of 4 are missing"), "{shown}");
    let report = report(&scratch, &disks);
    let why = report["arrays"][0]["refusal"].as_str().expect("a reason");
    assert!(why.contains("members 2, 3 of 4 are missing"), "{why}");
    assert_eq!(report["arrays"][0]["limits"], Value::Null);
}

/// A group with a snapshot, a thin pool, and a volume on a disk that is missing.
fn mixed_group(scratch: &Scratch) -> Vec<Disk> {
    let lvs = [
        lv(0, "plain", SEEN, 4, &linear(0, 0)),
        lv(1, "snap", "", 4, &linear(0, 24)),
        lv(
            2,
            "snapshot0",
            "",
            4,
            "type = \"snapshot\" chunk_size = 8 origin = \"plain\" cow_store = \"snap\"",
        ),
        lv(
            3,
            "pool",
            SEEN,
            8,
            "type = \"thin-pool\" metadata = \"pool_tmeta\" pool = \"pool_tdata\" transaction_id = 2 chunk_size = 128 \
             zero_new_blocks = 1",
        ),
        lv(4, "pool_tmeta", "", 1, &linear(0, 6)),
        lv(5, "pool_tdata", "", 8, &linear(0, 7)),
        lv(6, "t1", SEEN, 20, "type = \"thin\" thin_pool = \"pool\" transaction_id = 0 device_id = 1"),
        lv(
            7,
            "t2",
            SEEN,
            20,
            "type = \"thin\" thin_pool = \"pool\" transaction_id = 1 device_id = 2 origin = \"t1\"",
        ),
        lv(8, "far", SEEN, 3, &linear(1, 0)),
        lv(
            9,
            "wide",
            SEEN,
            4,
            "type = \"striped\" stripe_count = 2 stripe_size = 8 stripes = [\"pv0\", 20, \"pv1\", 5]",
        ),
    ];
    let disk = pv(scratch, "a", 0, 40);
    commit(&disk, &group("vg0", 2, 40, &lvs.concat()));
    vec![disk]
}

#[test]
fn volumes_stand_below_those_that_they_belong_to_and_parts_are_in_brackets() {
    let scratch = Scratch::new();
    let disks = mixed_group(&scratch);
    let shown = tree(&scratch, &disks);
    let expected = "\
NAME              SIZE  TYPE       CONTENT
disk/a            1.2M  disk       PV of vg0

vg0               320K  vg         2 PVs, 7 LVs, 224K free, partial
|-[pv1]           160K  pv         missing, was /dev/sd1 once
|-vg0/far          12K  linear     partial, not served
|-vg0/plain        16K  linear
| `-vg0/snap       16K  snapshot   snapshot of plain, chunk 4K, store 16K, 50.00% full
|-vg0/pool         32K  thin-pool  chunk 64K, not served
| |-vg0/t1         80K  thin       not served
| |-vg0/t2         80K  thin       snapshot of t1, not served
| |-[pool_tdata]   32K  linear     data
| `-[pool_tmeta]    4K  linear     metadata
`-vg0/wide         16K  striped    2 stripes of 4K, partial, not served
";
    assert!(shown.starts_with(expected), "{shown}");
    assert!(shown.contains("\nvg0/t1, vg0/t2: not served: its pool pool: it was never used"), "{shown}");
    assert!(shown.contains("\nvg0/far, vg0/wide: not served: the physical volume pv1 "), "{shown}");
}

#[test]
fn json_has_what_lvs_and_pvs_show() {
    let scratch = Scratch::new();
    let disks = mixed_group(&scratch);
    let report = report(&scratch, &disks);
    let group = &report["groups"][0];
    assert_eq!(group["vg_uuid"], lvm_uuid('V', 0).to_string());
    assert_eq!((&group["seqno"], &group["partial"]), (&json!(7), &json!(true)));
    let pvs = &group["pvs"];
    assert_eq!((&pvs[0]["volume"], &pvs[0]["free"]), (&json!("disk/a"), &json!((40 - 19) * 4096)));
    assert_eq!((&pvs[1]["volume"], &pvs[1]["pv_uuid"]), (&Value::Null, &json!(lvm_uuid('P', 1).to_string())));
    assert_eq!(report["disks"][0]["pv"]["group"], "vg0");
    let lvs = group["lvs"].as_array().expect("a list");
    let named = |name: &str| lvs.iter().find(|lv| lv["name"] == name).expect("it is there");
    assert_eq!(named("plain")["role"], json!(["public", "origin", "thickorigin"]));
    assert_eq!(named("snap")["origin"], "plain");
    // A store that is new: its header, and an area.
    let store = json!({"size": 16384, "used": 8192, "percent": 50.0, "status": "16/32 16"});
    assert_eq!((&named("snap")["store"], &named("plain")["store"]), (&store, &Value::Null));
    assert_eq!(named("pool_tdata")["role"], json!(["private", "thin", "pool", "data"]));
    assert_eq!(named("pool_tdata")["parent"], "pool");
    assert_eq!(named("t2")["role"], json!(["public", "snapshot", "thinsnapshot"]));
    assert_eq!((&named("t2")["pool"], &named("t2")["origin"]), (&json!("pool"), &json!("t1")));
    let areas = json!([
        {"volume": "disk/a", "pv": "pv0", "start": PE_START * SECTOR + 20 * 4096},
        {"volume": null, "pv": "pv1", "start": PE_START * SECTOR + 5 * 4096},
    ]);
    let wide = &named("wide")["segments"][0];
    assert_eq!(
        (&wide["type"], &wide["stripe_size"], &wide["areas"]),
        (&json!("striped"), &json!(4096), &areas)
    );
    assert!(
        lvs.iter().all(|lv| lv["name"] != "snapshot0"),
        "what ties a snapshot to its origin is no volume"
    );
}

/// All keys of a report, and of the values of all of them.
fn keys(value: &Value, into: &mut BTreeSet<String>) {
    match value {
        Value::Array(list) => list.iter().for_each(|value| keys(value, into)),
        Value::Object(fields) => fields.iter().for_each(|(key, value)| {
            into.insert(key.clone());
            keys(value, into);
        }),
        _ => {}
    }
}

#[test]
fn every_field_is_in_the_documentation() {
    let documentation = include_str!("../../../../docs/scan-json.md");
    let scratch = Scratch::new();
    let mut disks = mixed_group(&scratch);
    disks.push(member(&scratch, "m0", 0, 20));
    let partitioned = Disk::new(&scratch, "partitioned", 8192);
    run(tool("sgdisk").args(["--clear", "--new=1:2048:+1M", &partitioned.path]));
    disks.push(partitioned);
    let mut found = BTreeSet::new();
    keys(&report(&scratch, &disks), &mut found);
    for known in ["part_uuid", "device_uuid", "used_dev_size", "pe_start", "stripe_size", "read_ahead_kb"] {
        assert!(found.contains(known), "{known} is not in {found:?}");
    }
    let is_told = |key: &&String| documentation.contains(&format!("`{key}`"));
    let untold: Vec<&String> = found.iter().filter(|key| !is_told(key)).collect();
    assert!(untold.is_empty(), "docs/scan-json.md does not tell of {untold:?}");
}

#[test]
fn labels_and_names_from_disks_cannot_command_the_terminal() {
    let scratch = Scratch::new();
    let disk = Disk::new(&scratch, "disk", 32_768);
    run(tool("mkfs.ext4").args(["-q", "-F", &disk.path]));
    disk.write(1024 + 0x78, b"a\x1b[2Jb\n\xffc");
    let shown = tree(&scratch, &[disk]);
    assert_eq!(line(&shown, "disk/disk"), "disk/disk 16M disk ext4 \"a\\u{1b}[2Jb\\n\u{fffd}c\"");
    assert_eq!(shown.lines().count(), 2, "{shown:?}");
}

#[test]
fn neither_scan_nor_serving_for_reading_writes_anything() {
    let scratch = Scratch::new();
    let mut disks: Vec<Disk> =
        (0..4).map(|place| member(&scratch, &format!("m{place}"), place, 20)).collect();
    let disk = pv(&scratch, "pv", 0, 40);
    commit(&disk, &group("vg0", 1, 40, &lv(0, "root", SEEN, 16, &linear(0, 3))));
    disks.push(disk);
    let before: Vec<_> = paths(&disks).into_iter().map(print_of).collect();
    for options in [&["scan"][..], &["scan", "--json"], &["scan", "--limits", "--uuids"]] {
        run(scratch.blockwork(options).args(paths(&disks)));
    }
    let serve = ["--read-only", "--disk"].into_iter().chain(paths(&disks));
    let server = scratch.serve(serve.chain(["md/data", "vg0/root"]));
    for (export, bytes) in [("md/data", 2 << 20), ("vg0/root", 16 * EXTENT * SECTOR)] {
        let copy = scratch.at("copy");
        run(tool("nbdcopy").args([&scratch.uri(export), &copy]));
        assert_eq!(std::fs::metadata(&copy).expect("a copy").len(), bytes, "{export}");
        std::fs::remove_file(&copy).expect("it is there");
    }
    server.stop_quietly();
    let after: Vec<_> = paths(&disks).into_iter().map(print_of).collect();
    assert_eq!(before, after);
}

#[test]
fn limits_are_those_that_the_disk_would_have_for_a_writer() {
    let scratch = Scratch::new();
    let disks: Vec<Disk> = (0..4).map(|place| member(&scratch, &format!("m{place}"), place, 20)).collect();
    let report = report(&scratch, &disks);
    let discards = |device: &Value| device["limits"]["discard_max_bytes"].as_u64().expect("a number");
    let server = scratch.serve(["--disk"].into_iter().chain(paths(&disks)).chain(["md/data"]));
    let info = run(tool("nbdinfo").args(["--json", &scratch.uri("md/data")]));
    server.stop_quietly();
    let info: Value = serde_json::from_str(&info).expect("JSON");
    let can_trim = info["exports"][0]["can_trim"].as_bool().expect("a flag");
    assert_eq!(discards(&report["arrays"][0]) > 0, can_trim);
    assert_eq!(discards(&report["disks"][0]) > 0, can_trim);
    assert_eq!(report["disks"][0]["limits"]["read_only"], false);
}

/// Reads of the files in a log of `strace`: of each file, offset and length of each read.
fn reads_of(log: &str) -> Vec<(u64, u64)> {
    let number = |text: &str| text.trim().parse::<u64>().ok();
    let read = |line: &str| {
        let call = line.split("pread64(").nth(1)?;
        let (arguments, result) = call.rsplit_once(" = ")?;
        let offset = arguments.trim_end().strip_suffix(')')?.rsplit(',').next()?;
        Some((number(offset)?, number(result)?))
    };
    log.lines().filter_map(read).collect()
}

#[test]
fn hundreds_of_disks_and_thousands_of_volumes_are_read_once() {
    const PVS: usize = 200;
    const LVS: usize = 2000;
    let scratch = Scratch::new();
    let lvs: String = (0..LVS)
        .map(|nr| {
            lv(
                nr,
                &format!("lv{nr:04}"),
                SEEN,
                2,
                &linear(nr % PVS, 2 * u64::try_from(nr / PVS).expect("small")),
            )
        })
        .collect();
    let text = group("vg0", PVS, 32, &lvs);
    let disks: Vec<Disk> = (0..PVS).map(|nr| pv(&scratch, &format!("pv{nr:03}"), nr, 32)).collect();
    disks.iter().for_each(|disk| commit(disk, &text));
    let log = scratch.at("log");
    let mut strace = tool("strace");
    strace.args(["-f", "-s", "0", "-e", "trace=pread64", "-o", &log, support::BLOCKWORK, "scan", "--json"]);
    let report: Value = serde_json::from_str(&run(strace.args(paths(&disks)))).expect("JSON");
    assert_eq!(report["groups"][0]["lvs"].as_array().map(Vec::len), Some(LVS));
    assert_eq!(report["groups"][0]["warnings"], json!([]));
    let reads = reads_of(&String::from_utf8(scratch.read("log")).expect("text"));
    assert!(reads.len() > PVS + LVS, "the log was understood: {} reads", reads.len());
    // A device is looked at with a handful of reads, whatever else there is.
    assert!(reads.len() <= 5 * (PVS + LVS), "{} reads", reads.len());
    let bytes: u64 = reads.iter().map(|(_, bytes)| bytes).sum();
    let text_bytes = u64::try_from(text.len()).expect("a length");
    // The head of each device, and of each disk the text once.
    let head = 100 << 10;
    let expected =
        u64::try_from(PVS + LVS).expect("small") * head + u64::try_from(PVS).expect("small") * text_bytes;
    assert!(bytes <= expected, "{bytes} bytes, expected at most {expected}");
}

/// A disk of 20 MiB with the volume `inside/data` of 8 MiB, to be put on another one.
fn group_that_goes_inside(scratch: &Scratch) -> String {
    let inner = scratch.sparse("inner", 20 << 20);
    run(&mut scratch.blockwork(["vg", "create", "inside", &inner]));
    run(&mut scratch.blockwork(["lv", "create", "inside/data", "-L", "8M", "--disk", &inner]));
    inner
}

/// The disk of a virtual machine in a thin volume, whose map nobody has read in its midst.
#[test]
fn a_group_on_a_partition_of_a_thin_volume_is_found() {
    const MIB: u64 = 1 << 20;
    let scratch = Scratch::new();
    let verb = |words: &[&str]| run(&mut scratch.blockwork(words));
    let inner = group_that_goes_inside(&scratch);
    let vm = Disk::new(&scratch, "vm", 64 * MIB / SECTOR);
    let table = "label: gpt\nstart=2048,size=79872\nstart=81920,size=40960";
    run(tool("sh").args(["-c", &format!("printf '{table}' | sfdisk --quiet {}", vm.path)]));
    vm.write(MIB, &noise(39 * MIB as usize, 1));
    vm.write(40 * MIB, &std::fs::read(&inner).unwrap());
    let disk = scratch.sparse("disk", 100 * MIB);
    verb(&["vg", "create", "outside", &disk]);
    verb(&["lv", "create", "outside/pool", "--thin-pool", "-L", "80M", "--disk", &disk]);
    verb(&["lv", "create", "outside/vm", "--thin", "pool", "-V", "64M", "--disk", &disk]);
    let server = scratch.serve(["--disk", &disk, "outside/vm"]);
    run(tool("nbdcopy").args(["--destination-is-zero", &vm.path, &scratch.uri("outside/vm")]));
    server.stop_quietly();
    let found: Value = serde_json::from_str(&verb(&["scan", "--json", &disk])).unwrap();
    assert!(found.to_string().contains("\"inside/data\""), "{found}");
    let before = print_of(&disk);
    let server = scratch.serve(["--read-only", "--disk", &disk, "inside/data"]);
    assert_eq!(run(tool("nbdinfo").args(["--size", &scratch.uri("inside/data")])), "8388608\n");
    server.stop_quietly();
    assert!(print_of(&disk) == before, "it was only read");
}

/// What a snapshot holds has the identifiers of what its origin holds.
#[test]
fn a_group_in_a_volume_that_has_snapshots_is_that_of_the_origin() {
    const MIB: u64 = 1 << 20;
    let scratch = Scratch::new();
    let verb = |words: &[&str]| run(&mut scratch.blockwork(words));
    let inner = group_that_goes_inside(&scratch);
    let disk = scratch.sparse("disk", 150 * MIB);
    verb(&["vg", "create", "outside", &disk]);
    verb(&["lv", "create", "outside/pool", "--thin-pool", "-L", "40M", "--disk", &disk]);
    for (kind, volume, snapshot) in
        [("old", &["-L", "20M"][..], &["--size", "24M"][..]), ("thin", &["--thin", "pool", "-V", "20M"], &[])]
    {
        let with_disk = |words: &[&str], more: &[&str]| {
            verb(&[words, more, &["--disk", &disk]].concat());
        };
        // The snapshots of snapshots come first by their names, and by when they were made.
        with_disk(&["lv", "create", "outside/vm"], volume);
        let server = scratch.serve(["--disk", &disk, "outside/vm"]);
        run(tool("nbdcopy").args([&inner, &scratch.uri("outside/vm")]));
        server.stop_quietly();
        with_disk(&["lv", "snapshot", "outside/vm", "--name", "b"], snapshot);
        if kind == "thin" {
            with_disk(&["lv", "snapshot", "outside/b", "--name", "a"], snapshot);
        }
        let server = scratch.serve(["--disk", &disk, "inside/data"]);
        run(&mut fio(
            &scratch,
            &scratch.uri("inside/data"),
            &["--rw=write", "--bs=1M", "--size=8M", "--buffer_pattern=0xa5"],
        ));
        let log = server.stop().stderr;
        let left_out =
            "outside/b: it claims to belong to inside, which has been assembled without it: it is left out";
        assert!(log.contains(left_out), "{kind}: {log}");
        let sum = |name: &str, range| {
            let server = scratch.serve(["--read-only", "--disk", &disk, name]);
            let sum = checksum(&scratch, name, range);
            server.stop();
            sum
        };
        let [data, vm, b] = ["inside/data", "outside/vm", "outside/b"]
            .map(|name| sum(name, if name == "inside/data" { 0..8 * MIB } else { MIB..9 * MIB }));
        assert_eq!(data, vm, "{kind}");
        assert_ne!(data, b, "{kind}");
        for name in ["a", "b", "vm"].into_iter().filter(|name| kind == "thin" || *name != "a") {
            with_disk(&["lv", "remove", &format!("outside/{name}")], &[]);
        }
    }
}

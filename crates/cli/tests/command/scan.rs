//! `blockwork scan` on disks that sfdisk, sgdisk and mkfs have made, and on disks that somebody has broken. What it says
//! is compared with what those tools say; and it never writes.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;

use crate::support::fs::print_of;
use crate::support::{Scratch, both, output, run, run_refused, tool};
use serde_json::Value;

const MIB: u64 = 1 << 20;
/// One sector; one block of these disks.
const SECTOR: u64 = 512;

/// A disk of 64 MiB with a GPT: partitions 1, 2 and 5.
fn gpt(scratch: &Scratch, name: &str) -> String {
    let disk = scratch.sparse(name, 64 * MIB);
    run(tool("sgdisk")
        .args(["--clear", "--new=1:2048:+16M", "--typecode=1:8300", "--change-name=1:root"])
        .arg(&disk));
    run(tool("sgdisk")
        .args(["--new=2:0:+8M", "--typecode=2:ef00", "--new=5:0:+4M", "--change-name=5:last"])
        .arg(&disk));
    disk
}

/// A disk of 64 MiB with an MBR: 1 primary, 2 extended with the logical 5, 6 and 7.
fn mbr(scratch: &Scratch, name: &str) -> String {
    let disk = scratch.sparse(name, 64 * MIB);
    let script = scratch.write(
        "script",
        "label: dos\nlabel-id: 0x1234abcd\nstart=2048, size=20480, type=83\nstart=22528, size=81920, type=5\n\
         start=24576, size=8192, type=83\nstart=36864, size=8192, type=82\nstart=47104, size=16384, type=8e\n",
    );
    run(tool("sh").args(["-c", &format!("sfdisk --quiet {disk} < {script}")]));
    disk
}

/// `scan --json` of one disk.
fn scan(scratch: &Scratch, disk: &str) -> Value {
    let said = run(&mut scratch.blockwork(["scan", "--json", disk]));
    let mut report: Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!(report["disks"].as_array().map(Vec::len), Some(1), "{said}");
    report["disks"][0].take()
}

fn tree(scratch: &Scratch, disks: &[&str]) -> String {
    run(scratch.blockwork(["scan"]).args(disks))
}

/// The only warning of a scan.
fn warning(scratch: &Scratch, disk: &str) -> String {
    let report = scan(scratch, disk);
    let warnings = report["warnings"].as_array().expect("a list");
    assert_eq!(warnings.len(), 1, "{report}");
    let warning = warnings[0].as_str().expect("a sentence").to_owned();
    let shown = tree(scratch, &[disk]);
    assert!(shown.lines().any(|line| line.starts_with(&format!("warning: {disk}: "))), "{shown}");
    warning
}

fn poke(disk: &str, offset: u64, bytes: &[u8]) {
    let file = OpenOptions::new().write(true).open(disk).expect("it is there");
    file.write_all_at(bytes, offset).expect("it can be written");
}

/// Writes a file system made by `mkfs` into a disk.
fn put_file_system(scratch: &Scratch, disk: &str, offset: u64, bytes: u64, mkfs: &[&str]) {
    let image = scratch.sparse("file-system", bytes);
    run(tool(mkfs[0]).args(&mkfs[1..]).arg(&image));
    let seek = format!("seek={offset}");
    let (from, to) = (format!("if={image}"), format!("of={disk}"));
    run(tool("dd").args([
        &from,
        &to,
        "bs=1M",
        &seek,
        "oflag=seek_bytes",
        "conv=notrunc,sparse",
        "status=none",
    ]));
}

/// What sfdisk makes of a disk: number, first byte, bytes.
fn as_sfdisk_sees_it(disk: &str) -> Vec<(u64, u64, u64)> {
    let json: Value = serde_json::from_str(&run(tool("sfdisk").args(["--json", disk]))).expect("JSON");
    let partitions = json["partitiontable"]["partitions"].as_array().expect("a list");
    let number = |node: &str| node.trim_start_matches(disk).parse().expect("a number");
    partitions
        .iter()
        .filter(|p| p["type"] != "5")
        .map(|p| {
            let bytes = |key: &str| p[key].as_u64().expect("sectors") * SECTOR;
            (number(p["node"].as_str().expect("text")), bytes("start"), bytes("size"))
        })
        .collect()
}

fn as_we_see_it(report: &Value) -> Vec<(u64, u64, u64)> {
    let partitions = report["partitions"].as_array().expect("a list");
    let number = |p: &Value, key: &str| p[key].as_u64().expect("a number");
    partitions.iter().map(|p| (number(p, "number"), number(p, "start"), number(p, "size"))).collect()
}

#[test]
fn partitions_are_those_that_sfdisk_sees() {
    let scratch = Scratch::new();
    for disk in [gpt(&scratch, "gpt.img"), mbr(&scratch, "mbr.img")] {
        let report = scan(&scratch, &disk);
        assert_eq!(as_we_see_it(&report), as_sfdisk_sees_it(&disk));
        assert_eq!(report["warnings"], Value::Array(Vec::new()));
    }
}

#[test]
fn the_tree_shows_partitions_file_systems_and_the_names_of_volumes() {
    let scratch = Scratch::new();
    let disk = gpt(&scratch, "disk.img");
    put_file_system(&scratch, &disk, MIB, 16 * MIB, &["mkfs.ext4", "-q", "-F"]);
    let whole = scratch.sparse("whole.img", 512 * MIB);
    run(tool("mkfs.xfs").args(["-q", "-L", "data", &whole]));
    let shown = tree(&scratch, &["disk.img", "whole.img"]);
    let expected = "\
NAME               SIZE  TYPE  CONTENT
disk/disk.img       64M  disk  gpt
|-disk/disk.img/1   16M  part  ext4, named \"root\"
|-disk/disk.img/2    8M  part  (EFI System)
`-disk/disk.img/5    4M  part  (Linux filesystem), named \"last\"
disk/whole.img     512M  disk  xfs \"data\"
";
    assert_eq!(shown, expected);
    let uuid = run(tool("blkid").args(["-p", "-o", "value", "-s", "UUID", &whole]));
    let shown = run(&mut scratch.blockwork(["scan", "--uuids", "whole.img"]));
    assert!(shown.contains(uuid.trim()), "{uuid}: {shown}");
}

#[test]
fn json_has_its_documented_fields() {
    let scratch = Scratch::new();
    let disk = mbr(&scratch, "disk.img");
    let report = scan(&scratch, &disk);
    let keys =
        |value: &Value| value.as_object().expect("an object").keys().cloned().collect::<Vec<_>>().join(" ");
    assert_eq!(
        keys(&report),
        "content disk label limits md_member partition_table partition_table_id partitions pv read_only refusal size uuid \
         volume warnings"
    );
    assert_eq!(
        keys(&report["partitions"][0]),
        "content label limits md_member name number part_uuid partition_table partition_table_id partitions pv read_only \
         refusal size start type_id type_name uuid volume warnings"
    );
    assert_eq!(report["size"], 64 * MIB);
    assert_eq!(report["partition_table"], "mbr");
    assert_eq!(report["partition_table_id"], "0x1234abcd");
    let last = report["partitions"].as_array().and_then(|list| list.last()).expect("four");
    assert_eq!(last["number"], 7);
    assert_eq!(last["volume"], "disk/disk.img/7");
    assert_eq!((&last["type_id"], &last["type_name"]), (&"0x8e".into(), &"Linux LVM".into()));
    assert_eq!(last["part_uuid"], "1234abcd-07");
    assert_eq!(report["limits"]["logical_block_size"], 512);
}

#[test]
fn a_gpt_whose_primary_header_is_broken_is_read_from_its_backup() {
    let scratch = Scratch::new();
    let disk = gpt(&scratch, "disk.img");
    let before = as_we_see_it(&scan(&scratch, &disk));
    // A flipped bit in the disk's GUID: only the CRC can tell.
    poke(&disk, SECTOR + 56, &[0xff, 0x00, 0xff]);
    assert_eq!(as_we_see_it(&scan(&scratch, &disk)), before);
    let said = warning(&scratch, &disk);
    assert!(said.contains("GPT header at 512: header CRC is 0x"), "{said}");
    assert!(said.contains(&format!("the backup at {} was used", 64 * MIB - SECTOR)), "{said}");
    // Both: no partitions, and both places are named.
    poke(&disk, 64 * MIB - SECTOR, &[0; 92]);
    assert_eq!(as_we_see_it(&scan(&scratch, &disk)), []);
    let said = warning(&scratch, &disk);
    assert!(
        said.contains("GPT header at 512") && said.contains(&format!("at {}", 64 * MIB - SECTOR)),
        "{said}"
    );
}

#[test]
fn a_gpt_whose_entries_are_broken_is_read_from_its_backup() {
    let scratch = Scratch::new();
    let disk = gpt(&scratch, "disk.img");
    let before = as_we_see_it(&scan(&scratch, &disk));
    poke(&disk, 2 * SECTOR + 40, &u64::MAX.to_le_bytes());
    assert_eq!(as_we_see_it(&scan(&scratch, &disk)), before);
    let said = warning(&scratch, &disk);
    assert!(said.contains("GPT entries at 1024: CRC is 0x"), "{said}");
}

#[test]
fn a_disk_that_was_cut_says_so() {
    let scratch = Scratch::new();
    let disk = gpt(&scratch, "disk.img");
    OpenOptions::new().write(true).open(&disk).unwrap().set_len(20 * MIB).unwrap();
    let said = warning(&scratch, &disk);
    assert!(said.contains("GPT header at 512") && said.contains("cut"), "{said}");
    // So small that there is no second sector.
    let disk = mbr(&scratch, "small.img");
    OpenOptions::new().write(true).open(&disk).unwrap().set_len(SECTOR).unwrap();
    let report = scan(&scratch, &disk);
    assert_eq!(as_we_see_it(&report), []);
    let said = report["warnings"].to_string();
    assert!(said.contains("partition 1 was left out") && said.contains("the disk (1 sectors)"), "{said}");
}

#[test]
fn an_image_that_is_not_raw_is_told_with_what_makes_it_raw() {
    let scratch = Scratch::new();
    run(tool("qemu-img").args(["create", "-q", "-f", "qcow2", &scratch.at("vm.qcow2"), "16M"]));
    // Sizes of images are as they come.
    let whole = scratch.read("vm.qcow2").len().next_multiple_of(512);
    let mut image = scratch.read("vm.qcow2");
    image.resize(whole, 0);
    scratch.write("vm.qcow2", &image);
    let said = warning(&scratch, "vm.qcow2");
    assert!(said.starts_with("it is a qcow2 image") && said.contains("qemu-img convert -O raw"), "{said}");
    let server = scratch.serve(["--read-only", "--disk", "vm.qcow2"]);
    let ended = server.stop();
    assert!(ended.stderr.contains("warning: vm.qcow2: it is a qcow2 image"), "{}", ended.stderr);
    assert!(ended.status.success());
    // A partition may be there to hold one.
    let disk = gpt(&scratch, "disk.img");
    OpenOptions::new().write(true).open(&disk).unwrap().write_all_at(&image, MIB).unwrap();
    let report = scan(&scratch, &disk);
    assert_eq!(report["warnings"], Value::Array(Vec::new()));
    assert!(report.to_string().contains("\"content\":\"qcow2\""), "{report}");
}

#[test]
fn a_fixed_vhd_a_file_system_that_was_cut_short_and_what_is_too_small_are_told() {
    let scratch = Scratch::new();
    let disk = gpt(&scratch, "disk.img");
    run(tool("qemu-img")
        .args(["convert", "-f", "raw", "-O", "vpc", "-o", "subformat=fixed,force_size=on"])
        .args([&disk, &scratch.at("vm.vhd")]));
    let said = scan(&scratch, "vm.vhd")["warnings"].to_string();
    assert!(said.contains("a vpc image of fixed size") && said.contains("qemu-img convert -f vpc"), "{said}");

    scratch.write("small.zst", [0x28, 0xb5, 0x2f, 0xfd, 4, 0, 1, 2]);
    let said = run_refused(&mut scratch.blockwork(["scan", "small.zst"]));
    assert!(said.contains("its size is 8 bytes") && said.contains("unzstd"), "{said}");
    assert!(!said.contains("truncate"), "it would be no disk with another size: {said}");

    scratch.sparse("cut.img", 16 * MIB);
    run(tool("mkfs.ext4").args(["-q", "-F", &scratch.at("cut.img")]));
    OpenOptions::new().write(true).open(scratch.path("cut.img")).unwrap().set_len(12 * MIB).unwrap();
    let said = warning(&scratch, "cut.img");
    assert!(
        said.starts_with("the ext4 on it has 16777216 bytes, and the device ends after 12582912"),
        "{said}"
    );
}

/// One partition entry of an MBR or EBR.
fn entry(kind: u8, start: u32, sectors: u32) -> [u8; 16] {
    let mut entry = [0; 16];
    entry[4] = kind;
    entry[8..12].copy_from_slice(&start.to_le_bytes());
    entry[12..].copy_from_slice(&sectors.to_le_bytes());
    entry
}

#[test]
fn partitions_that_overlap_or_exceed_the_disk_are_left_out_and_named() {
    let scratch = Scratch::new();
    let disk = scratch.sparse("disk.img", 64 * MIB);
    for (i, entry) in (0u64..).zip([
        entry(0x83, 2048, 2048),
        entry(0x83, 4000, 2048),
        entry(0x83, 100_000, 1_000_000),
        entry(0x83, u32::MAX, u32::MAX),
    ]) {
        poke(&disk, 446 + 16 * i, &entry);
    }
    poke(&disk, 510, &[0x55, 0xaa]);
    let report = scan(&scratch, &disk);
    assert_eq!(as_we_see_it(&report), [(1, MIB, MIB)]);
    let warnings: Vec<&str> =
        report["warnings"].as_array().unwrap().iter().map(|warning| warning.as_str().unwrap()).collect();
    assert_eq!(warnings.len(), 3, "{warnings:?}");
    assert!(
        warnings[0].contains("partition 2 was left out: sectors 4000 to 6047 overlap partition 1"),
        "{warnings:?}"
    );
    assert!(
        warnings[1].contains("partition 3 was left out: its 1000000 sectors from 100000"),
        "{warnings:?}"
    );
    assert!(warnings[2].contains("partition 4 was left out"), "{warnings:?}");
}

#[test]
fn a_chain_of_logical_partitions_that_loops_ends() {
    let scratch = Scratch::new();
    let disk = mbr(&scratch, "disk.img");
    // The second EBR's link leads to the first, at the extended partition's start.
    let second = (36_864 - 2048) * SECTOR;
    let at = [second, 34_816 * SECTOR, 32_768 * SECTOR].into_iter().find(|at| {
        let mut signature = [0; 2];
        std::fs::File::open(&disk).unwrap().read_exact_at(&mut signature, at + 510).unwrap();
        signature == [0x55, 0xaa]
    });
    let at = at.expect("sfdisk puts an EBR 1 MiB before its partition or right behind the one before");
    poke(&disk, at + 446 + 16, &entry(5, 0, 20_480));
    let report = scan(&scratch, &disk);
    assert_eq!(as_we_see_it(&report).iter().map(|p| p.0).collect::<Vec<_>>(), [1, 5, 6]);
    let said = report["warnings"].to_string();
    assert!(
        said.contains("the chain of logical partitions ends at sector") && said.contains("loops"),
        "{said}"
    );
}

#[test]
fn a_gpt_with_absurd_counts_is_refused_by_name_and_limit() {
    let scratch = Scratch::new();
    let disk = gpt(&scratch, "disk.img");
    for header in [SECTOR, 64 * MIB - SECTOR] {
        let mut bytes = [0; 92];
        std::fs::File::open(&disk).unwrap().read_exact_at(&mut bytes, header).unwrap();
        bytes[80..84].copy_from_slice(&u32::MAX.to_le_bytes());
        bytes[16..20].fill(0);
        let crc = crc32(&bytes);
        bytes[16..20].copy_from_slice(&crc.to_le_bytes());
        poke(&disk, header, &bytes);
    }
    let said = warning(&scratch, &disk);
    assert!(said.contains("number of entries is 4294967295, expected at most"), "{said}");
}

/// CRC-32 as in zlib, bit by bit.
fn crc32(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg());
        }
    }
    !crc
}

#[test]
fn what_is_broken_on_one_disk_does_not_hide_another() {
    let scratch = Scratch::new();
    let (good, bad) = (gpt(&scratch, "good.img"), gpt(&scratch, "bad.img"));
    poke(&bad, SECTOR, &[0; 92]);
    poke(&bad, 64 * MIB - SECTOR, &[0; 92]);
    let shown = tree(&scratch, &[&bad, &good]);
    assert!(shown.contains("disk/good.img/5") && !shown.contains("disk/bad.img/"), "{shown}");
}

#[test]
fn names_with_control_characters_are_escaped_in_text_and_kept_in_json() {
    let scratch = Scratch::new();
    let disk = scratch.sparse("evil\u{1b}[31m\nname", 64 * MIB);
    run(tool("sgdisk").args(["--clear", "--new=1:2048:+16M", "--change-name=1:a\u{1b}[2Jb"]).arg(&disk));
    let shown = tree(&scratch, &[&disk]);
    assert!(!shown.contains('\u{1b}'), "{shown:?}");
    assert_eq!(shown.lines().count(), 3, "{shown:?}");
    assert!(shown.contains("a\\u{1b}[2Jb") && shown.contains("evil\\u{1b}[31m\\nname"), "{shown}");
    let report = scan(&scratch, &disk);
    assert_eq!(report["partitions"][0]["name"], "a\u{1b}[2Jb");
}

#[test]
fn scanning_writes_nothing_not_even_to_a_disk_that_needs_repair() {
    let scratch = Scratch::new();
    let disks = [gpt(&scratch, "gpt.img"), mbr(&scratch, "mbr.img"), gpt(&scratch, "broken.img")];
    poke(&disks[2], SECTOR, &[0; 92]);
    let before = disks.each_ref().map(|disk| print_of(disk));
    for arguments in [&["scan"][..], &["scan", "--json"], &["scan", "--limits"]] {
        run(scratch.blockwork(arguments).args(&disks));
    }
    assert_eq!(disks.each_ref().map(|disk| print_of(disk)), before);
}

#[test]
fn a_disk_that_is_being_served_can_be_scanned() {
    let scratch = Scratch::new();
    let disk = gpt(&scratch, "disk.img");
    let alone = tree(&scratch, &["disk.img"]);
    let server = scratch.serve(["--disk", &disk]);
    assert_eq!(tree(&scratch, &["disk.img"]), alone);
    server.stop_quietly();
}

#[test]
fn what_is_no_whole_sector_is_told_by_the_name_of_the_disk_once() {
    let scratch = Scratch::new();
    let said = warning(&scratch, &scratch.sparse("odd.img", MIB + 8));
    let expected =
        "its size of 1048584 bytes is not a multiple of 512: the last 8 bytes are not part of the disk";
    assert_eq!(said, expected);
}

#[test]
fn what_is_no_disk_is_refused_with_a_remedy() {
    let scratch = Scratch::new();
    let refused = |disk: &str| {
        let done = output(&mut scratch.blockwork(["scan", disk]));
        assert_eq!(done.status.code(), Some(1), "{}", both(&done));
        assert!(done.stdout.is_empty());
        let said = both(&done);
        assert_eq!(said.lines().count(), 1, "{said}");
        said
    };
    let said = refused("nowhere.img");
    assert!(said.contains("nowhere.img: open: No such file or directory"), "{said}");
    assert!(said.ends_with("; correct the path\n"), "who looks wants no new disk: {said}");
    assert_eq!(said.matches("No such file").count(), 1, "it is said once: {said}");
    let said = refused(&scratch.at(""));
    assert!(said.contains("is a folder; a disk is a regular file or a block device"), "{said}");
    let said = run_refused(&mut scratch.blockwork(["vg", "create", "vg", "nowhere.img"]));
    assert!(said.contains("create it first (truncate -s 10G FILE)"), "{said}");
    let done = output(&mut scratch.blockwork(["scan"]));
    assert_eq!(done.status.code(), Some(2), "no disk is wrong usage: {}", both(&done));
}

//! `blockwork md create`: arrays that are served at once, disks that are refused, and nothing left of what was there before.

use std::fs::File;
use std::os::unix::fs::{FileExt, symlink};

use crate::md_lab::Lab;
use crate::support::fs::Loop;
use crate::support::nbd::load;
use crate::support::{Scratch, both, noise, output, run, run_refused, tool};
use serde_json::Value;

const MIB: u64 = 1 << 20;

fn create(scratch: &Scratch, args: &str) -> String {
    run(scratch.blockwork(["md", "create"]).args(args.split_whitespace()))
}

/// It must be refused with these words, and no byte be written.
#[track_caller]
fn refused(scratch: &Scratch, args: &str, words: &[&str]) {
    let disks = || ["a", "b", "c", "d"].map(|name| scratch.read(name));
    let before = disks();
    let said = run_refused(scratch.blockwork(["md", "create"]).args(args.split_whitespace()));
    words.iter().for_each(|word| assert!(said.contains(word), "{word:?} is not in: {said}"));
    assert!(disks() == before, "{args}: something was written, though it said: {said}");
}

fn four(mib: u64) -> Scratch {
    let scratch = Scratch::new();
    for name in ["a", "b", "c", "d"] {
        scratch.sparse(name, mib * MIB);
    }
    scratch
}

#[test]
fn a_new_array_is_served_and_keeps_what_is_written_to_it() {
    for (args, size) in [
        ("--level 0 -n 4 --chunk 64K", 124 * MIB),
        ("--level 1 -n 2 -x 2 --bitmap internal", 31 * MIB),
        ("--level 10 -n 4 --metadata 1.0", 62 * MIB),
        ("--level 10 -n 4 --layout o2 --chunk 4K --assume-clean --metadata 1.1", 62 * MIB),
        ("--level 4 -n 3 -x 1 --chunk 64K", 62 * MIB),
        ("--level 5 -n 4 --bitmap internal", 90 * MIB),
        (
            "--level raid6 -n 4 --layout left-symmetric-6 --chunk 4K --metadata 1.0 --bitmap internal",
            62 * MIB,
        ),
    ] {
        let scratch = four(32);
        let said = create(&scratch, &format!("{args} --name host:data a b c d"));
        assert!(said.contains("md/data: "), "{said}");
        let content = noise(usize::try_from(size).unwrap(), 7);
        scratch.write("content", &content);
        let served = scratch.serve(["--disk", "d", "b", "c", "a"]);
        run(tool("nbdcopy").arg(scratch.at("content")).arg(scratch.uri("md/data")));
        assert!(served.stop().status.success());
        let served = scratch.serve(["--disk", "a", "b", "c", "d", "md/data", "--read-only"]);
        run(tool("nbdcopy").arg(scratch.uri("md/data")).arg(scratch.at("copy")));
        assert!(served.stop().status.success());
        assert!(scratch.read("copy")[..content.len()] == content, "{args}");
    }
}

#[test]
fn a_number_alone_is_kib_as_it_is_for_mdadm() {
    let ours = four(32);
    create(&ours, "--level 10 -n 4 --chunk 64 --size 8192 --data-offset 2048 --assume-clean a b c d");
    let said = run(tool("mdadm").args(["--examine", &ours.at("a")]));
    for line in
        ["Used Dev Size : 16384 sectors (8.00 MiB 8.39 MB)", "Data Offset : 4096 sectors", "Chunk Size : 64K"]
    {
        assert!(said.contains(line), "{line:?} is not in: {said}");
    }
}

#[test]
fn members_may_be_missing_or_partitions_and_json_tells_all() {
    let scratch = four(32);
    let table = scratch.write("table", "label: gpt\nsize=8M\nsize=8M\n");
    run(tool("sh").args(["-c", &format!("exec sfdisk --quiet {} <{table}", scratch.at("a"))]));
    let said = create(&scratch, "--level 1 -n 3 --json --name data a/1 missing a/2");
    let said: Value = serde_json::from_str(&said).unwrap();
    assert_eq!((&said["volume"], &said["raid_devices"]), (&"md/data".into(), &3.into()));
    assert_eq!(said["array_size"], 7 * MIB);
    assert_eq!(said["members"][1]["role"], 2);
    let tree = run(&mut scratch.blockwork(["scan", "a"]));
    assert!(tree.contains("member 2 of md/data") && tree.contains("[3/2]"), "{tree}");
    let again = create(&scratch, "--level 1 -n 2 --force --name data a/1 a/2");
    assert!(again.contains("Serve it: blockwork serve --disk a md/data --nbd"), "{again}");
    let said = create(&scratch, "--level 1 -n 3 --force --json --name data a/1 missing a/2");
    assert!(said.contains("\"volume\": \"md/data\""), "{said}");
    // The table is as it was, and the members are what mdadm takes for one.
    run(tool("sgdisk").arg("--verify").arg(scratch.at("a")));
    let members = run(&mut scratch.blockwork(["md", "examine", "a"]));
    assert!(members.contains("disk/a/1:\n") && members.contains("Array State : A.A"), "{members}");
    // What one might not have meant is said.
    scratch.sparse("large", 40 * MIB);
    let said_of =
        |args: &str| both(&output(scratch.blockwork(["md", "create"]).args(args.split_whitespace())));
    let said = said_of("--level 1 -n 2 d large");
    assert!(said.contains("warning: large: 8M of it are not used"), "{said}");
    let said = said_of("--level 0 -n 2 --force d large");
    assert!(
        said.contains("warning: the members are of different size") && said.contains("before 5.4"),
        "{said}"
    );
    // Without a name, the UUID's first digits are one.
    let said: Value = serde_json::from_str(&create(&scratch, "--level 0 -n 2 --json b c")).unwrap();
    assert!(said["array_uuid"].as_str().unwrap().starts_with(said["name"].as_str().unwrap()));
}

#[test]
fn parities_are_computed_and_members_that_come_are_filled() {
    // Level, layout, disks at the start, and those that come.
    for (level, layout, first, later) in [
        ("4", "parity-last", "a b c", &[][..]),
        ("5", "left-symmetric", "a b c d", &[]),
        ("5", "right-asymmetric", "a missing b", &["c"]),
        ("6", "parity-first", "a b c d", &[]),
        ("6", "ddf-N-continue", "a missing b c", &["d"]),
        ("6", "left-symmetric-6", "missing a b missing", &["c", "d"]),
    ] {
        // Nothing fits anything.
        let scratch = Scratch::new();
        (1..)
            .zip(["a", "b", "c", "d"])
            .for_each(|(seed, disk)| drop(scratch.write(disk, noise(16 << 20, seed))));
        let layout_option = if level == "4" { String::new() } else { format!("--layout {layout}") };
        let there: Vec<&str> = first.split(' ').filter(|disk| *disk != "missing").collect();
        let members = there.len() + later.len();
        let said = create(
            &scratch,
            &format!("-l {level} -n {members} {layout_option} --chunk 16K --name data --json {first}"),
        );
        let said: Value = serde_json::from_str(&said).unwrap();
        assert_eq!(said["resync_due"], later.is_empty(), "{said}");
        // Linux would not begin with one that is to be resynced while a member is missing.
        let spares = said["members"].as_array().unwrap().iter().filter(|member| member["role"] == "spare");
        assert_eq!(spares.count(), usize::from(level == "6" && later.len() == 1), "{said}");
        let shown = run(&mut scratch.blockwork(["md", "examine", "a"]));
        assert!(shown.contains(&format!("Raid Level : raid{level}\n")), "{shown}");
        assert_eq!(shown.contains(&format!("Layout : {layout}\n")), level != "4", "{shown}");

        let mut disks = there;
        let verb = |words: &[&str], disks: &[&str]| {
            run(&mut scratch.blockwork([&["md"], words, &["--disk"], disks].concat()))
        };
        verb(&["wait", "md/data"], &disks);
        let said = verb(&["detail", "md/data"], &disks);
        let in_sync = members - later.len();
        assert!(said.contains(&format!("[{members}/{in_sync}]")), "{said}");
        for disk in later {
            verb(&["add", "md/data", disk], &disks);
            disks.push(disk);
        }
        let said = verb(&["detail", "md/data"], &disks);
        assert!(said.contains(&format!("[{members}/{members}]")), "{said}");
        let said = verb(&["check", "md/data"], &disks);
        assert!(said.contains("mismatch_cnt 0 "), "level {level}, {layout}, {first}: {said}");
        // A check that finds nothing says something only if it finds what there is.
        let disk = File::options().write(true).open(scratch.path("b")).unwrap();
        disk.write_all_at(&noise(4096, 9), 8 * MIB).unwrap();
        let said = verb(&["check", "md/data"], &disks);
        assert!(said.contains("mismatch_cnt 8 "), "level {level}, {layout}, {first}: {said}");
    }
}

#[test]
fn disks_that_hold_something_are_refused_and_with_force_nothing_of_it_is_left() {
    let scratch = four(64);
    run(tool("mkfs.ext4").args(["-q", "-L", "precious"]).arg(scratch.at("a")));
    run(tool("sh").args(["-c", &format!("echo 'label: gpt\nsize=8M' | sfdisk --quiet {}", scratch.at("b"))]));
    create(&scratch, "--level 1 -n 2 --metadata 1.0 --name older c d");
    let uuid = run(tool("blkid").args(["-p", "-o", "value", "-s", "UUID"]).arg(scratch.at("a")));
    refused(&scratch, "-l 0 -n 2 a b", &["a: it holds ext4 \"precious\"", uuid.trim(), "--force"]);
    refused(&scratch, "-l 0 -n 1 --force missing", &["missing"]);
    refused(&scratch, "-l 1 -n 2 missing b", &["b: it holds a partition table (gpt) with 1 partition,"]);
    refused(&scratch, "-l 1 -n 2 c d", &["c: it holds a member of the raid1 array \"older\" ("]);
    // What was at the end is found by nobody, nor what was at the start.
    let said = create(&scratch, "--level 10 -n 4 --force --name newer a b c d");
    assert!(said.contains("md/newer"), "{said}");
    for name in ["a", "b", "c", "d"] {
        let found =
            run(tool("wipefs").args(["--noheadings", "--output", "type,offset"]).arg(scratch.at(name)));
        assert_eq!(found.split_whitespace().collect::<Vec<_>>(), ["linux_raid_member", "0x1000"], "{name}");
    }
    let tree = run(&mut scratch.blockwork(["scan", "a", "b", "c", "d"]));
    assert!(tree.contains("md/newer") && !tree.contains("older"), "{tree}");
}

#[test]
fn what_cannot_be_an_array_is_refused_before_anything_is_written() {
    let scratch = four(8);
    scratch.sparse("small", MIB);
    symlink(scratch.at("a"), scratch.path("link")).unwrap();
    for (args, words) in [
        ("-l 1 -n 2 a small", &["small: it has 2048 sectors", "give a larger disk"][..]),
        ("-l 1 -n 2 a link", &["link: it is given twice (as a before)"]),
        ("-l 1 -n 2 a a", &["a: it is given twice"]),
        ("-l 1 -n 3 a b", &["--raid-devices 3 and --spare-devices 0 need 3 disks, and 2 were given"]),
        ("-l 1 -n 1 a", &["an array of one device is unusual", "--force"]),
        ("-l 0 -n 2 -x 1 a b c", &["neither spares nor missing members"]),
        ("-l 0 -n 2 a missing", &["neither spares nor missing members"]),
        ("-l 0 -n 2 a b --bitmap internal", &["no bitmap"]),
        ("-l 10 -n 4 missing missing a b", &["members [0, 1] are missing"]),
        ("-l 1 -n 2 missing missing", &["members [0, 1] are missing"]),
        ("-l 1 -n 2 -x 1 a b missing", &["a spare cannot be missing"]),
        ("-l 10 -n 2 --layout n3 a b", &["--layout n3: expected at most 2 copies"]),
        ("-l 10 -n 2 --layout x2 a b", &["--layout x2: expected n, f or o"]),
        ("-l 1 -n 2 --layout n2 a b", &["only a RAID5, RAID6 or RAID10 has a choice of layouts"]),
        ("-l 4 -n 3 --layout parity-last a b c", &["only a RAID5, RAID6 or RAID10 has a choice of layouts"]),
        ("-l 5 -n 3 --layout n2 a b c", &["--layout n2: expected left-symmetric (ls)"]),
        (
            "-l 5 -n 3 --layout left-symmetric-6 a b c",
            &["--layout left-symmetric-6: expected left-symmetric (ls)"],
        ),
        (
            "-l 6 -n 4 --parity parity-last-6 a b c d",
            &["--layout parity-last-6: expected", "ddf-zero-restart"],
        ),
        ("-l 6 -n 3 a b c", &["a raid6 has 4 to 256 devices (--raid-devices), and this one 3"]),
        ("-l 5 -n 1 a", &["a raid5 has 2 to 1920 devices (--raid-devices), and this one 1"]),
        (
            "-l 5 -n 4 missing missing a b",
            &["members [0, 1] are missing, and the parity of a raid5 makes up for 1"],
        ),
        ("-l 6 -n 4 missing missing missing a", &["the parity of a raid6 makes up for 2"]),
        ("-l 5 -n 2 --chunk 24K a b", &["a power of two of at least 4 KiB"]),
        ("-l 5 -n 2 --chunk 2K a b", &["a power of two of at least 4 KiB"]),
        ("-l 10 -n 2 --chunk 24K a b", &["a power of two of at least 4 KiB"]),
        ("-l 1 -n 2 --chunk 64K a b", &["--chunk: a RAID1 has no chunks"]),
        ("-l 10 -n 2 --chunk 1000B a b", &["--chunk 1000B: expected whole sectors"]),
        ("-l 1 -n 2 --size 40M a b", &["a: it has room for", "a smaller --size"]),
        ("-l 1 -n 2 --name a/b a b", &["--name \"a/b\": expected letters"]),
        ("-l 1 -n 2 a,ro b", &["a,ro: it cannot be written to"]),
        ("-l 1 -n 2 a/3 b", &["a/3: the disk has no such partition"]),
        ("-l 1 -n 2 a nothing", &["nothing: "]),
        ("-l 7 -n 4 a b c d", &["invalid value '7'"]),
    ] {
        refused(&scratch, args, words);
    }
}

#[test]
fn a_disk_that_a_server_has_is_refused() {
    let scratch = four(8);
    let served = scratch.serve(["--disk", "b"]);
    refused(&scratch, "-l 1 -n 2 a b", &["b: ", "locked", "stop that first"]);
    refused(&scratch, "-l 1 -n 2 --force a b", &["locked"]);
    served.stop();
    // No resync, which would write meanwhile.
    create(&scratch, "-l 1 -n 2 --assume-clean a b");
    let served = scratch.serve(["--disk", "a", "b"]);
    refused(&scratch, "-l 1 -n 2 --force c b", &["b: ", "locked"]);
    served.stop();
}

#[test]
fn disks_with_blocks_of_4096_bytes_are_written_in_whole_ones_and_not_mixed_with_others() {
    let scratch = four(8);
    let loops =
        ["a", "b"].map(|name| Loop::with(&["--direct-io=on", "--sector-size=4096"], &scratch.at(name)));
    let [a, b] = [&loops[0].device, &loops[1].device];
    refused(
        &scratch,
        &format!("-l 1 -n 2 {a} c"),
        &["c: its logical blocks have 512 bytes, and those of", "4096"],
    );
    create(&scratch, &format!("-l 1 -n 2 --bitmap internal --name data {a} {b}"));
    let shown = run(&mut scratch.blockwork(["md", "examine", a]));
    assert!(shown.contains("Internal Bitmap : 8 sectors from superblock"), "{shown}");
    assert_eq!(run(tool("mdadm").args(["--examine", a]).env("TZ", "UTC")), shown.replace(" UTC\n", "\n"));
}

/// Who has just made one has left nothing undone.
#[test]
fn a_new_array_is_told_from_one_that_was_not_stopped() {
    let new = "it is new, and not resynced yet";
    let left = "it was not stopped properly, or not resynced to its end";
    for (level, disks, wrong) in
        [("1", 2, "its mirrors may differ"), ("5", 3, "its parity may not fit its data")]
    {
        let lab = Lab::new();
        let disks = &["a.img", "b.img", "c.img"][..disks];
        lab.create(level, disks, 8 * MIB, &[]);
        let scan = || run(&mut lab.scratch.blockwork([&["scan"], disks].concat()));
        assert!(scan().contains(&format!("{new}, as is done while it is served: {wrong}")), "{}", scan());
        let server = lab.serve(disks);
        lab.md(&["wait", "md/data"]);
        assert!(lab.stop(server).contains(new));
        assert!(!scan().contains(wrong), "{}", scan());
        let server = lab.serve(disks);
        load(&lab.socket(), &["--export", "md/data", "--rw", "write", "--bs", "4k", "--ios", "1"]);
        server.kill();
        assert!(scan().contains(&format!("{left}: {wrong}")), "{}", scan());
    }
}

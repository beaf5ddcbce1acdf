//! Old snapshots that are made, grow and go while their group is served and clients write: each stays what its origin was in one moment,
//! also where the server is killed in the middle. LVM's tools judge what is on the disks afterwards.

use std::path::PathBuf;

use crate::support::fs::SmallDisk;
use crate::support::lvm::Lab;
use crate::support::nbd::{self, Raw, fio, python};
use crate::support::{Background, FuseDisk, both, noise, output, run, run_refused, tool, until};

const MIB: u64 = 1 << 20;

/// Blocks that the counting client writes, round and round.
const BLOCKS: u32 = 512;

/// A verb that the running server is asked for.
fn served(lab: &Lab, args: &[&str]) -> String {
    run(&mut lab.scratch.blockwork(args))
}

/// A client that writes numbers, 1, 2, 3, ..., each to a whole block, one after the other, by turns on two connections: so at any moment a
/// volume has the numbers up to one of them, the last of each block, and no gap.
struct Counter {
    client: Background,
    so_far: PathBuf,
}

impl Counter {
    fn start(lab: &Lab, export: &str, first_block: u32) -> Counter {
        let so_far = lab.scratch.path(&format!("so_far{first_block}"));
        let script = format!(
            "import nbd, os, struct\n\
             def connect(uri):\n    h = nbd.NBD()\n    h.connect_uri(uri)\n    return h\n\
             both = [connect({uri:?}), connect({uri:?})]\n\
             n = 0\n\
             while True:\n    n += 1\n    h = both[n % 2]\n    \
             h.pwrite(struct.pack('<Q', n) * 512, ({first_block} + n * 7 % {BLOCKS}) * 4096)\n    \
             if n % 64 == 0:\n        h.flush()\n        open({new:?}, 'w').write(str(n))\n        os.rename({new:?}, {so_far:?})\n",
            uri = lab.scratch.uri(export),
            new = so_far.with_extension("new")
        );
        Counter { client: Background::start(tool("/usr/bin/python3").args(["-c", &script])), so_far }
    }

    fn count(&self) -> u64 {
        std::fs::read_to_string(&self.so_far).ok().and_then(|text| text.parse().ok()).unwrap_or(0)
    }

    /// Waits until all blocks have been written once more.
    fn wait_for_a_round(&self) {
        let before = self.count();
        until("the client has written all blocks again", || self.count() > before + u64::from(BLOCKS) + 64);
    }
}

/// The last number that a volume has, where it has all up to that.
fn last_number(lab: &Lab, export: &str, first_block: u32) -> u64 {
    let said = python(&format!(
        "import struct\n\
         h = connect({:?})\n\
         data = h.pread({BLOCKS} * 4096, {first_block} * 4096)\n\
         words = struct.unpack('<%dQ' % (len(data) // 8), data)\n\
         blocks = [set(words[at:at + 512]) for at in range(0, len(words), 512)]\n\
         assert all(len(block) == 1 for block in blocks), 'a torn block'\n\
         found = [block.pop() for block in blocks]\n\
         last = max(found)\n\
         for at, n in enumerate(found):\n    \
             assert last - {BLOCKS} < n and n * 7 % {BLOCKS} == at, (at, n, last)\n\
         print(last)\n",
        lab.scratch.uri(export)
    ));
    said.trim().parse().expect("a number")
}

/// What tells one content of a volume from another.
fn checksum(lab: &Lab, export: &str) -> String {
    nbd::checksum(&lab.scratch, export, 0..u64::MAX)
}

fn group(mib: u64) -> Lab {
    let lab = Lab::new(&[("a", mib)]);
    lab.verb(&["vg", "create", "vg", "a", "-s", "1M"]);
    lab.verb(&["lv", "create", "vg/root", "--size", "32M"]);
    lab
}

#[test]
fn snapshots_of_a_volume_that_is_written_are_what_it_was_in_one_moment() {
    let lab = group(261);
    let server = lab.scratch.serve(["--disk", "a", "--workers", "2"]);
    let counter = Counter::start(&lab, "vg/root", 0);
    let mut writer = fio(
        &lab.scratch,
        &lab.scratch.uri("vg/root"),
        &[
            "--rw=randwrite",
            "--bs=4k",
            "--offset=8m",
            "--size=6m",
            "--verify=crc32c",
            "--iodepth=8",
            "--loops=6",
        ],
    );
    let writer = Background::start(&mut writer);
    counter.wait_for_a_round();
    let snapshot = |name: &str, more: &[&str]| {
        let said = served(&lab, &[&["lv", "snapshot", "vg/root", "--name", name][..], more].concat());
        assert!(said.starts_with(&format!("vg/{name}: a snapshot of root")), "{said}");
        (last_number(&lab, &format!("vg/{name}"), 0), checksum(&lab, &format!("vg/{name}")))
    };
    let first = snapshot("first", &["--size", "12M"]);
    counter.wait_for_a_round();
    let second = snapshot("second", &["--size", "40M"]);
    let third = snapshot("third", &["--size", "40M", "--chunksize", "64K"]);
    assert!(first.0 + u64::from(BLOCKS) < second.0 && second.0 <= third.0, "{first:?} {second:?} {third:?}");
    served(&lab, &["lv", "resize", "vg/first", "--size", "+28M"]);
    counter.wait_for_a_round();
    until("nobody has it open", || {
        output(&mut lab.scratch.blockwork(["lv", "remove", "vg/second"])).status.success()
    });
    served(&lab, &["lv", "resize", "vg/root", "--size", "+8M"]);
    counter.wait_for_a_round();
    // A snapshot is written to like any volume.
    python(&format!(
        "h = connect({:?})\nh.pwrite(b's' * 70000, (20 << 20) + 511)\nh.flush()\n\
         print(h.pread(2, (20 << 20) + 510))\n",
        lab.scratch.uri("vg/third")
    ));
    let third = (third.0, checksum(&lab, "vg/third"));
    writer.succeed();
    drop(counter);
    let expect_frozen = || {
        for (name, (last, sum)) in [("vg/first", &first), ("vg/third", &third)] {
            assert_eq!((last_number(&lab, name, 0), &checksum(&lab, name)), (*last, sum), "{name}");
        }
    };
    expect_frozen();
    let root = checksum(&lab, "vg/root");
    server.stop_quietly();
    lab.expect_sound();
    let said = lab.lvm(&["lvs --noheadings --separator ; --units m -O lv_name -o lv_name,origin,lv_size vg"]);
    let lines: Vec<&str> = said[0].lines().map(str::trim).collect();
    // No store is larger than what its origin may need.
    assert_eq!(lines, ["first;root;33.00m", "root;;40.00m", "third;root;33.00m"]);

    // The next server finds the same; the last snapshot's end makes a plain volume of the origin.
    let server = lab.scratch.serve(["--disk", "a"]);
    expect_frozen();
    served(&lab, &["lv", "remove", "vg/first"]);
    served(&lab, &["lv", "remove", "vg/third"]);
    assert_eq!(checksum(&lab, "vg/root"), root);
    let limits = python(&format!("h = connect({:?})\nprint(h.can_trim())\n", lab.scratch.uri("vg/root")));
    assert_eq!(limits, "True\n", "what an origin cannot do, a plain volume can");
    server.stop_quietly();
    lab.expect_sound();
}

#[test]
fn partitions_and_mirrors_below_follow_when_a_snapshot_is_made() {
    let lab = Lab::new(&[("a", 101), ("b", 101)]);
    lab.verb(&["vg", "create", "vg", "a", "b", "-s", "1M"]);
    lab.verb(&["lv", "create", "vg/disk", "--type", "raid1", "--size", "16M", "--nosync"]);
    let server = lab.scratch.serve(["--disk", "a", "b"]);
    lab.partition("vg/disk");
    server.stop_quietly();
    let server = lab.scratch.serve(["--disk", "a", "b", "--workers", "2"]);
    let counter = Counter::start(&lab, "vg/disk/1", 0);
    counter.wait_for_a_round();
    served(&lab, &["lv", "snapshot", "vg/disk", "--size", "8M", "--name", "snap"]);
    let last = last_number(&lab, "vg/snap", 256);
    counter.wait_for_a_round();
    assert_eq!(last_number(&lab, "vg/snap", 256), last);
    served(&lab, &["lv", "snapshot", "vg/disk", "--size", "8M", "--name", "other"]);
    until("nobody has it open", || {
        output(&mut lab.scratch.blockwork(["lv", "remove", "vg/snap"])).status.success()
    });
    counter.wait_for_a_round();
    drop(counter);
    let other = (last_number(&lab, "vg/other", 256), checksum(&lab, "vg/other"));
    let disk = checksum(&lab, "vg/disk");
    server.stop_quietly();
    lab.expect_sound();
    let server = lab.scratch.serve(["--disk", "a", "b"]);
    assert_eq!((last_number(&lab, "vg/other", 256), checksum(&lab, "vg/other")), other);
    assert_eq!(checksum(&lab, "vg/disk"), disk);
    let ended = server.stop();
    assert!(!ended.stderr.contains("may differ"), "{}", ended.stderr);
}

#[test]
fn a_server_that_is_killed_between_verbs_leaves_every_snapshot_what_it_was() {
    let lab = group(361);
    for round in 1..=3_u32 {
        let server = lab.scratch.serve(["--disk", "a", "--workers", "2"]);
        let counter = Counter::start(&lab, "vg/root", 1024 * round);
        counter.wait_for_a_round();
        served(&lab, &["lv", "snapshot", "vg/root", "--size", "40M", "--name", "kept"]);
        let kept = (last_number(&lab, "vg/kept", 1024 * round), checksum(&lab, "vg/kept"));
        // It dies at another place of the sequence of changes in each round.
        let loop_of_changes = format!(
            "i=0; next() {{ {0} lv \"$@\" || exit; i=$((i + 1)); echo $i > {1}; }}; \
             for n in $(seq 40); do next snapshot vg/root --size 4M --name s$n; \
             next resize vg/s$n --size +16M; next remove vg/s$n; done",
            env!("CARGO_BIN_EXE_blockwork"),
            lab.scratch.at("count"),
        );
        // How many verbs have ended, by the loop's own account.
        let ended = || {
            let count = std::fs::read_to_string(lab.scratch.path("count")).unwrap_or_default();
            count.trim().parse::<u32>().unwrap_or(0)
        };
        let _ = std::fs::remove_file(lab.scratch.path("count"));
        let mut shell = tool("sh");
        shell.args(["-c", &loop_of_changes]).env("BLOCKWORK_RUN_DIR", lab.scratch.path("run"));
        let changes = Background::start(&mut shell);
        until("much has changed", || ended() > 2 * round);
        server.kill();
        let promised = counter.count();
        counter.client.finish();
        changes.finish();
        assert_eq!(lab.lvm(&["vgck vg"]), [""]);
        let server = lab.scratch.serve(["--disk", "a"]);
        assert_eq!((last_number(&lab, "vg/kept", 1024 * round), checksum(&lab, "vg/kept")), kept);
        let last = last_number(&lab, "vg/root", 1024 * round);
        assert!(last >= promised, "of {promised} that were flushed there are {last}");
        let list = run(tool("nbdinfo").args(["--list", &lab.scratch.uri("")]));
        let names = list.lines().filter_map(|line| line.strip_prefix("export=\"")?.split('"').next());
        let snapshots: Vec<&str> = names.filter(|name| *name != "vg/root").collect();
        for name in &snapshots {
            // Whether its verb had come to its end or not.
            last_number(&lab, name, 1024 * round);
        }
        for name in snapshots {
            served(&lab, &["lv", "remove", name]);
        }
        server.stop_quietly();
        lab.expect_sound();
    }
}

#[test]
fn what_lies_on_a_volume_keeps_its_snapshots_as_they_are() {
    let lab = Lab::new(&[("a", 161)]);
    lab.verb(&["vg", "create", "vg", "a", "-s", "1M"]);
    lab.verb(&["lv", "create", "vg/inner", "--size", "32M"]);
    let table = lab.scratch.write("t.table", "0 2048 linear vg/inner 0\n");
    let server = lab.scratch.serve(["--disk", "a", "--table", &table]);
    let said = run_refused(
        &mut lab.scratch.blockwork(["lv", "snapshot", "vg/inner", "--size", "8M", "--name", "snap"]),
    );
    assert!(said.contains("lies on it: stop serving it first"), "{said}");
    server.stop_quietly();
    lab.expect_sound();
}

/// A disk is cut short under the server, so that one of a family cannot be built anew.
#[test]
fn a_volume_that_cannot_go_on_is_named_with_the_reason_and_what_to_do() {
    let lab = Lab::new(&[("a", 61), ("b", 41)]);
    lab.verb(&["vg", "create", "vg", "a", "b", "-s", "1M"]);
    lab.verb(&["lv", "create", "vg/root", "--size", "8M"]);
    lab.verb(&["lv", "create", "vg/filler", "--size", "52M"]);
    lab.verb(&["lv", "snapshot", "vg/root", "--size", "9M", "--name", "first"]);
    lab.verb(&["lv", "remove", "vg/filler"]);
    let server = lab.scratch.serve(["--disk", "a", "b"]);
    let disk = std::fs::File::options().write(true).open(lab.scratch.path("b")).expect("a disk");
    disk.set_len(MIB).expect("it is cut");
    let done =
        output(&mut lab.scratch.blockwork(["lv", "snapshot", "vg/root", "--size", "9M", "--name", "second"]));
    disk.set_len(41 * MIB).expect("it is as long as it was");
    let said = both(&done);
    assert!(said.contains("vg/first cannot be served any more: "), "{said}");
    assert!(
        said.contains("its clients get errors until that is mended and the server started anew"),
        "{said}"
    );
    server.stop();
    lab.expect_sound();
}

#[test]
fn a_snapshot_that_was_lost_stays_lost_also_where_its_store_could_not_be_told() {
    let lab = Lab::new(&[("a", 33), ("b", 41)]);
    let small = SmallDisk::new(&lab.scratch, "b", 41, 8);
    lab.verb(&["vg", "create", "vg", "a", "b", "-s", "1M"]);
    lab.verb(&["lv", "create", "vg/root", "--size", "32M"]);
    let server = lab.scratch.serve(["--disk", "a", "b"]);
    served(&lab, &["lv", "snapshot", "vg/root", "--size", "8M", "--name", "lost"]);
    // Nothing can be written to the store, not even its header.
    small.punch(MIB, 8 * MIB);
    small.fill_up();
    let write = |bytes: &str| {
        let uri = lab.scratch.uri("vg/root");
        python(&format!("h = connect({uri:?})\nh.pwrite({bytes} * 65536, 0)\nh.flush()\n"));
    };
    write("b'1'");
    until("the loss is told in the log", || {
        server.said().contains("that it is lost cannot be written to its store")
    });
    small.make_room();
    let expect_lost = || {
        let said = served(&lab, &["lv", "show", "--json", "vg/lost"]);
        let shown: serde_json::Value = serde_json::from_str(&said).expect("JSON");
        assert_eq!(shown[0]["status"], "Invalid", "{said}");
        let read = format!(
            "h = connect({:?})\ntry:\n    print(h.pread(1, 0))\nexcept nbd.Error as error:\n    print(error.errno)\n",
            lab.scratch.uri("vg/lost")
        );
        assert_eq!(python(&read), "EIO\n");
    };
    expect_lost();
    served(&lab, &["lv", "snapshot", "vg/root", "--size", "8M", "--name", "other"]);
    expect_lost();
    write("b'2'");
    let other = python(&format!("h = connect({:?})\nprint(h.pread(1, 0))\n", lab.scratch.uri("vg/other")));
    assert_eq!(other, "bytearray(b'1')\n");
    until("nobody has it open", || {
        output(&mut lab.scratch.blockwork(["lv", "remove", "vg/other"])).status.success()
    });
    expect_lost();
    until("nobody has it open", || {
        output(&mut lab.scratch.blockwork(["lv", "remove", "vg/lost"])).status.success()
    });
    write("b'3'");
    let ended = server.stop();
    assert!(ended.status.success(), "{}", ended.stderr);
    lab.expect_sound();
}

#[test]
fn a_snapshot_that_was_lost_stays_lost_where_it_cannot_be_removed_with_its_thin_origin() {
    let lab = Lab::new(&[("a", 121)]);
    let small = SmallDisk::new(&lab.scratch, "a", 121, 64);
    lab.verb(&["vg", "create", "vg", "a", "-s", "1M"]);
    lab.verb(&["lv", "create", "vg/pool", "--thin-pool", "--size", "4M"]);
    lab.verb(&["lv", "create", "vg/thin", "--thin", "pool", "-V", "16M"]);
    lab.verb(&["lv", "create", "vg/plain", "--size", "16M"]);
    lab.tag_until_a_text_takes_pages("vg/plain");
    let write = |bytes: &str| {
        let uri = lab.scratch.uri("vg/thin");
        python(&format!("h = connect({uri:?})\nh.pwrite({bytes} * 65536, 0)\nh.flush()\n"));
    };
    let server = lab.scratch.serve(["--disk", "a"]);
    write("b'0'");
    server.stop_quietly();
    lab.verb(&["lv", "snapshot", "vg/plain", "--size", "18M", "--name", "snap"]);
    lab.move_snapshots("plain", "thin");
    let server = lab.scratch.serve(["--disk", "a", "--workers", "2"]);
    let said = served(&lab, &["lv", "show", "--json", "--all", "vg/snap"]);
    let shown: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    let place = shown[0]["areas"][0].as_str().and_then(|area| area.strip_prefix("a(")?.strip_suffix(')'));
    let first: u64 = place.and_then(|place| place.parse().ok()).unwrap_or_else(|| panic!("{said}"));
    small.punch((1 + first) * MIB, 18 * MIB);
    small.fill_up();
    write("b'1'");
    until("the loss is told in the log", || {
        server.said().contains("that it is lost cannot be written to its store")
    });
    let status = || {
        let said = served(&lab, &["lv", "show", "--json", "vg/snap"]);
        let shown: serde_json::Value = serde_json::from_str(&said).expect("JSON");
        shown[0]["status"].as_str().map(str::to_owned)
    };
    assert_eq!(status().as_deref(), Some("Invalid"));
    let remove = || output(&mut lab.scratch.blockwork(["lv", "remove", "vg/thin", "vg/snap"]));
    until("nobody has them open, and the text cannot be written", || {
        let done = remove();
        assert!(!done.status.success(), "{}", both(&done));
        both(&done).contains("could not be written")
    });
    small.make_room();
    assert_eq!(status().as_deref(), Some("Invalid"));
    let [thin, snap] = ["vg/thin", "vg/snap"].map(|export| {
        let script = "try:\n    print(connect(URI).pread(1, 0))\nexcept nbd.Error:\n    print('refused')\n";
        python(&script.replace("URI", &format!("{:?}", lab.scratch.uri(export))))
    });
    assert_eq!([thin.as_str(), snap.as_str()], ["bytearray(b'1')\n", "refused\n"]);
    until("nobody has them open", || remove().status.success());
    server.stop();
    lab.expect_sound();
}

#[test]
fn a_thin_volume_and_its_old_snapshot_go_in_one_request_whatever_the_order() {
    let lab = Lab::new(&[("a", 161)]);
    lab.verb(&["vg", "create", "vg", "a", "-s", "1M"]);
    lab.verb(&["lv", "create", "vg/pool", "--thin-pool", "--size", "32M"]);
    lab.verb(&["lv", "create", "vg/thin", "--thin", "pool", "-V", "16M"]);
    lab.verb(&["lv", "create", "vg/plain", "--size", "16M"]);
    lab.verb(&["lv", "snapshot", "vg/plain", "--size", "18M", "--name", "snap"]);
    lab.move_snapshots("plain", "thin");
    let server = lab.scratch.serve(["--disk", "a", "--workers", "2"]);
    let snap = checksum(&lab, "vg/snap");
    run(&mut fio(&lab.scratch, &lab.scratch.uri("vg/thin"), &["--rw=randwrite", "--bs=4k", "--size=4M"]));
    assert!(checksum(&lab, "vg/snap") == snap && checksum(&lab, "vg/thin") != snap);
    let client = Raw::open_export(&lab.scratch.at("socket"), "vg/snap");
    let said = run_refused(&mut lab.scratch.blockwork(["lv", "remove", "vg/thin", "vg/snap"]));
    assert!(said.contains("vg/snap is in use"), "{said}");
    assert_eq!(checksum(&lab, "vg/snap"), snap);
    drop(client);
    until("nobody has them open", || {
        let done = output(&mut lab.scratch.blockwork(["lv", "remove", "vg/thin", "vg/snap"]));
        assert!(done.status.success() || both(&done).contains(" has it open"), "{}", both(&done));
        done.status.success()
    });
    server.stop_quietly();
    lab.expect_sound();
    let map = lab.dumped("pool");
    assert!(!map.contains("<device"), "{map}");
    let said = lab.lvm(&["lvs --noheadings -O lv_name -o lv_name vg"]);
    assert_eq!(said[0].split_whitespace().collect::<Vec<_>>(), ["plain", "pool"]);
}

/// A client has its volume's chunks copied out, and goes; at once the volume goes too, with the snapshot. On a slow disk the copies would
/// last for seconds after that, and their place may be another volume's by then.
#[test]
fn nothing_is_copied_to_the_store_of_a_snapshot_that_has_gone_with_its_origin() {
    let lab = Lab::new(&[("a", 34), ("b", 45)]);
    lab.verb(&["vg", "create", "vg", "a", "b", "-s", "1M"]);
    lab.verb(&["lv", "create", "vg/base", "--size", "1M"]);
    lab.verb(&["lv", "create", "vg/root", "--size", "32M"]);
    lab.verb(&["lv", "snapshot", "vg/root", "--size", "33M", "--name", "snap"]);
    // What is copied out is not what lies in the store already: the origin begins at the second extent.
    let mut disk = lab.scratch.read("a");
    disk[2 << 20..34 << 20].copy_from_slice(&noise(32 << 20, 1));
    lab.scratch.write("a", &disk);
    let slow = FuseDisk::slow(&lab.scratch, "b", 45, 100);
    let server = lab.scratch.serve(["--disk", "a", &slow.file, "--workers", "2"]);
    let mut client = Raw::open_export(&lab.scratch.at("socket"), "vg/root");
    // The answer to the first finds nobody: that is how the server learns that the client has gone while it works for it. Of the other
    // there are thousands of chunks, and the store takes 256 at a time.
    client.write_unanswered(30 << 20, 64 << 10);
    client.write_unanswered(0, 24 << 20);
    drop(client);
    until("nobody has them open", || {
        let done = output(&mut lab.scratch.blockwork(["lv", "remove", "vg/root", "vg/snap"]));
        assert!(done.status.success() || both(&done).contains(" has it open"), "{}", both(&done));
        done.status.success()
    });
    let then = lab.scratch.read("b");
    server.stop_quietly();
    drop(slow);
    assert!(lab.scratch.read("b") == then, "the disk of the store was written to after that");
    lab.expect_sound();
}

/// An origin and its snapshots have no queue of their own.
#[test]
fn a_setting_that_an_origin_cannot_have_is_refused_with_where_it_belongs() {
    let lab = Lab::new(&[("a", 64), ("b", 64)]);
    run(&mut lab.scratch.blockwork(["vg", "create", "vg", "a", "b"]));
    lab.verb(&["lv", "create", "vg/x", "-L", "8M"]);
    lab.verb(&["lv", "snapshot", "vg/x", "-L", "4M", "-n", "before"]);
    for volume in ["vg/x", "vg/before"] {
        let set = format!("{volume}:discard_max_bytes=65536");
        let said = lab.scratch.misused(lab.args(&["--set", &set]));
        assert!(said.contains(&format!("--set {set}: {volume}, a device of the kind snapshot")), "{said}");
        assert!(said.contains("--disk DISK,discard_max_bytes=65536 for one"), "{said}");
    }
}

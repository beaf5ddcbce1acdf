//! Arrays that are looked after while they are served, and while they are not: members fail, go, come back and are replaced,
//! under the load of a client that checks what it reads; what is half-done is taken up by whoever comes next.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::md_lab::{Lab, MIB};
use crate::support;
use crate::support::fs::{Loop, SmallDisk};
use crate::support::nbd::{load, nbdload};
use crate::support::{BLOCKWORK, Background, Scratch, output, run, run_refused, tool, until};
use rustix::process::Signal;

#[test]
fn a_blank_disk_takes_the_place_of_a_failed_member_under_load() {
    let lab = Lab::new();
    lab.create("10", &["a.img", "b.img", "c.img", "d.img"], 32 * MIB, &["--assume-clean"]);
    lab.blank("e.img", 32 * MIB);
    let server = lab.serve(&["a.img", "b.img", "c.img", "d.img"]);
    // Beside clients, a recovery would take longer than they do.
    lab.md(&["sync-speed", "md/data", "--min", "100000"]);
    let mut client = nbdload();
    client.arg(format!("unix:{}", lab.socket())).args(["--export", "md/data", "--verify", "--rw", "randrw"]);
    client.args(["--bs", "4k", "--depth", "16", "--seconds", "10", "--flush-every", "64"]);
    let mut client = Background::start(&mut client);
    until("the client is at work", || lab.counters_of("a.img")["writes"].as_u64() > Some(0));
    assert_eq!(lab.md(&["fail", "md/data", "b.img"]), "b.img of md/data is given up\n");
    assert_eq!((lab.state("b.img"), lab.array()["degraded"].as_u64()), ("faulty".into(), Some(1)));
    assert_eq!(lab.md(&["remove", "md/data", "failed"]), "removed from md/data: b.img\n");
    assert_eq!(lab.member(1)["state"], "missing");
    let said = lab.md(&["add", "md/data", "e.img"]);
    assert_eq!(said, format!("{} is being filled as member 1 of md/data\n", lab.scratch.at("e.img")));
    let said = lab.md(&["wait", "md/data"]);
    assert!(said.ends_with("; all members are in sync\n"), "{said}");
    assert_eq!(lab.member(1)["name"], *lab.scratch.at("e.img"));
    assert!(client.is_running(), "the client was at work all the time");
    // A client that has read something else than it wrote says so.
    client.succeed();
    assert_eq!(lab.mismatches_of_check(), 0);
    lab.stop(server);
    lab.expect_equal("a.img", "e.img");
    lab.expect_equal("c.img", "d.img");
    // The next server finds it among the members.
    let server = lab.serve(&["a.img", "e.img", "c.img", "d.img"]);
    assert_eq!(lab.array()["degraded"], 0);
    lab.stop(server);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let updated = lab.md_json(&["examine", "--json", "a.img"])[0]["update_time"].as_u64().unwrap();
    assert!(updated <= now && now - updated < 600, "written at {updated}, now it is {now}");
}

#[test]
fn an_array_goes_by_its_uuid_wherever_a_volume_is_asked_for() {
    let lab = Lab::new();
    lab.create("1", &["a.img", "b.img"], 16 * MIB, &["--assume-clean"]);
    lab.blank("c.img", 16 * MIB);
    let server = lab.scratch.serve(["md/data", "disk/c.img", "--disk", "a.img", "b.img", "c.img"]);
    let uuid = lab.array()["uuid"].as_str().expect("text").to_owned();
    for (nth, asked) in [format!("md/{uuid}"), format!("md:{}", uuid.replace(':', "-"))].iter().enumerate() {
        assert_eq!(lab.md_json(&["status", asked, "--json"])["arrays"][0]["name"], "md/data");
        run(&mut lab.scratch.blockwork(["trace", asked, "-w", "0.1"]));
        let socket = lab.scratch.at(&format!("guest{nth}"));
        let said =
            run(&mut lab.scratch.blockwork(["export", "add", asked, "--vhost-user", &socket, "--json"]));
        let said: serde_json::Value = serde_json::from_str(&said).expect("JSON");
        assert_eq!(said["volume"], "md/data", "{said}");
        run(&mut lab.scratch.blockwork(["export", "remove", &socket]));
    }
    let nobodys = "md/00000000:00000000:00000000:00000000";
    let said = run_refused(&mut lab.scratch.blockwork(["trace", nobodys]));
    assert!(said.contains("no running server serves the volume md/00000000"), "{said}");
    lab.stop(server);
}

/// Asks for the same disk at once, once by each set of arguments; what was said, and whether it was done.
fn add_at_once(lab: &Lab, asked: &[&[&str]]) -> Vec<(bool, String)> {
    let start =
        |args: &&[&str]| Background::start(&mut lab.scratch.blockwork([&["md", "add"], *args].concat()));
    let running: Vec<_> = asked.iter().map(start).collect();
    let ended = running.into_iter().map(Background::finish);
    ended.map(|(code, said)| (code == Some(0), said)).collect()
}

#[test]
fn a_disk_that_several_ask_for_at_once_goes_to_one_of_them() {
    let lab = Lab::new();
    lab.create("1", &["a.img", "missing", "missing"], 64 * MIB, &["--assume-clean"]);
    lab.blank("o.img", 64 * MIB);
    lab.md(&["create", "--level", "1", "--name", "other", "--raid-devices", "2", "o.img", "missing"]);
    let server = lab.scratch.serve(["md/data", "md/other", "--disk", "a.img", "o.img"]);
    let has = |name: &str, path: &str| {
        let arrays = lab.md_json(&["status", name, "--json"])["arrays"].clone();
        let devices = arrays[0]["devices"].as_array().expect("a list").clone();
        devices.iter().filter(|device| device["name"] == *path).count()
    };
    for round in 0..8 {
        let disk = format!("c{round}.img");
        lab.blank(&disk, 64 * MIB);
        // By one array, and by two: both ways there are places that wait for it.
        let other = if round % 2 == 0 { "md/data" } else { "md/other" };
        let said = add_at_once(&lab, &[&["md/data", &disk], &[other, &disk], &["md/data", &disk]]);
        let (done, refused): (Vec<_>, Vec<_>) = said.iter().partition(|(done, _)| *done);
        assert_eq!(done.len(), 1, "{said:?}");
        let reasons = [
            "belongs to md/data already",
            "is being added to md/data at this moment",
            "another array has it",
        ];
        let is_told = |said: &str| said.contains(&disk) && reasons.iter().any(|reason| said.contains(reason));
        assert!(refused.iter().all(|(_, said)| is_told(said)), "{said:?}");
        let path = lab.scratch.at(&disk);
        assert_eq!(has("md/data", &path) + has("md/other", &path), 1, "{said:?}");
        for array in ["md/data", "md/other"] {
            if has(array, &path) == 1 {
                lab.md(&["wait", array]);
                // Its place is free for the next one.
                lab.md(&["fail", array, &path]);
                lab.md(&["remove", array, &path]);
            }
        }
    }
    lab.stop(server);
}

#[test]
fn halves_of_a_mirror_that_were_used_apart_agree_after_one_was_added_to_the_other() {
    let lab = Lab::new();
    lab.create("1", &["a.img", "b.img"], 64 * MIB, &["--assume-clean", "--bitmap", "internal"]);
    for (disk, range) in [("a.img", "8m+1m"), ("b.img", "16m+1m")] {
        let server = lab.serve(&[disk]);
        let writes = ["--rw", "write", "--bs", "64k", "--ios", "16", "--range", range];
        load(&lab.socket(), &[&["--export", "md/data"], &writes[..]].concat());
        lab.stop(server);
    }
    let server = lab.serve(&["a.img"]);
    let said = lab.md(&["add", "md/data", "b.img"]);
    assert_eq!(said, format!("{} is being filled as member 1 of md/data\n", lab.scratch.at("b.img")));
    lab.md(&["wait", "md/data"]);
    assert_eq!(lab.mismatches_of_check(), 0);
    let said = lab.stop(server);
    assert!(said.contains("b.img may have been written to without the members that are here"), "{said}");
    lab.expect_equal("a.img", "b.img");
}

/// What mdadm says of a device's bitmap: its events, and those at which bits were last cleared.
fn bitmap_events(lab: &Lab, disk: &str) -> (u64, u64) {
    // Of a file it would take the start for a bitmap.
    let device = Loop::with(&["--read-only"], &lab.scratch.at(disk));
    let said = run(tool("mdadm").args(["--examine-bitmap", &device.device]));
    let number = |name: &str| {
        let line = said.lines().find_map(|line| line.trim().strip_prefix(name)?.trim().strip_prefix(": "));
        line.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("{name} in {said}"))
    };
    (number("Events"), number("Events Cleared"))
}

#[test]
fn of_a_mirror_that_was_split_in_three_nobody_is_taken_for_what_he_was_with_another() {
    let lab = Lab::new();
    let disks = ["a.img", "n.img", "b.img"];
    lab.create("1", &disks, 64 * MIB, &["--assume-clean", "--bitmap", "internal"]);
    let write = |range: &str| {
        let writes = ["--rw", "write", "--bs", "64k", "--ios", "16", "--range", range];
        load(&lab.socket(), &[&["--export", "md/data"], &writes[..]].concat());
    };
    // Of the slots behind those of the first members, it gets the same one each time.
    let server = lab.serve(&disks);
    lab.md(&["fail", "md/data", "a.img"]);
    lab.md(&["remove", "md/data", "a.img"]);
    run(tool("wipefs").args(["--all", "--quiet"]).arg(lab.scratch.at("a.img")));
    lab.md(&["add", "md/data", "a.img", "--wait"]);
    lab.stop(server);
    let halves: [(&[&str], &str); 2] = [(&["a.img", "n.img"], "8m+1m"), (&["b.img"], "16m+1m")];
    for (half, range) in halves {
        let server = lab.serve(half);
        write(range);
        lab.stop(server);
    }
    let of_theirs = lab.md_json(&["examine", "--json", "n.img"])[0]["events"].as_u64().unwrap();
    // One of them goes over to the third, which then goes; the other one comes to what is left.
    let server = lab.serve(&["b.img"]);
    lab.md(&["add", "md/data", "a.img", "--wait"]);
    lab.stop(server);
    for disk in ["a.img", "b.img"] {
        let (events, cleared) = bitmap_events(&lab, disk);
        assert!(of_theirs < cleared && cleared <= events, "{disk}: {of_theirs}, {cleared}, {events}");
    }
    let server = lab.serve(&["a.img"]);
    lab.md(&["add", "md/data", "n.img"]);
    lab.md(&["wait", "md/data"]);
    assert_eq!(lab.mismatches_of_check(), 0);
    lab.stop(server);
    lab.expect_equal("a.img", "n.img");
    // All three at once are what the third one was.
    let tree = run(&mut lab.scratch.blockwork(["scan", "a.img", "n.img", "b.img"]));
    assert!(tree.contains("[3/2]") && tree.contains("b.img"), "{tree}");
}

#[test]
fn what_a_disk_held_is_found_by_nobody_after_it_was_added_with_force() {
    let lab = Lab::new();
    lab.create("1", &["a.img", "missing"], 64 * MIB, &["--assume-clean"]);
    // A table whose second header lies behind the data, and a file system that begins in the first MiB.
    lab.blank("gpt.img", 96 * MIB);
    let table = lab.scratch.write("table", "label: gpt\nsize=8M\n");
    run(tool("sh").args(["-c", &format!("exec sfdisk --quiet {} <{table}", lab.scratch.at("gpt.img"))]));
    lab.blank("ext4.img", 64 * MIB);
    run(tool("mkfs.ext4").args(["-q", "-L", "precious"]).arg(lab.scratch.at("ext4.img")));
    let server = lab.serve(&["a.img"]);
    for disk in ["gpt.img", "ext4.img"] {
        assert!(lab.refused(&["add", "md/data", disk]).contains("--force"));
        lab.md(&["add", "md/data", disk, "--force", "--wait"]);
        let path = lab.scratch.at(disk);
        let found = run(tool("wipefs").args(["--noheadings", "--output", "type,offset"]).arg(&path));
        assert_eq!(found.split_whitespace().collect::<Vec<_>>(), ["linux_raid_member", "0x1000"], "{disk}");
        let probed = run(tool("blkid").args(["-p", "-o", "value", "-s", "TYPE"]).arg(&path));
        assert_eq!(probed.trim(), "linux_raid_member", "{disk}");
        assert!(!run(tool("mdadm").args(["--examine", &path])).contains("MBR Magic"), "{disk}");
        lab.md(&["fail", "md/data", disk]);
        lab.md(&["remove", "md/data", disk]);
    }
    lab.stop(server);
}

#[test]
fn a_member_that_comes_back_gets_what_it_has_missed_and_no_more() {
    let lab = Lab::new();
    let disks = ["a.img", "b.img"];
    lab.create("1", &disks, 1024 * MIB, &["--assume-clean", "--bitmap", "internal"]);
    let write = |range: &str, seed: &str| {
        let args = ["--export", "md/data", "--rw", "write", "--bs", "64k", "--ios", "16"];
        load(
            &lab.socket(),
            &[&args[..], &["--range", range, "--seed", seed, "--flush-every", "16"]].concat(),
        );
    };
    let server = lab.serve(&disks);
    write("64m+1m", "1");
    lab.md(&["fail", "md/data", "1"]);
    lab.md(&["remove", "md/data", "b.img"]);
    write("512m+1m", "2");
    let said = lab.md(&["add", "md/data", "b.img", "--wait"]);
    assert!(
        said.starts_with("b.img is back as member 1 of md/data; what it has missed is copied to it\n"),
        "{said}"
    );
    assert_eq!(lab.array()["degraded"], 0);
    let stats = server.stop_for_stats();
    // A bit of this bitmap covers 64 MiB.
    let written = stats.count("b.img", "write_bytes");
    assert!((MIB..=130 * MIB).contains(&written), "{written} bytes were written to what came back");
    lab.expect_equal("a.img", "b.img");

    // The same after a restart: the former member is among the disks, and in none of the places.
    let server = lab.serve(&disks);
    lab.md(&["fail", "md/data", "a.img"]);
    lab.md(&["remove", "md/data", "a.img"]);
    write("768m+1m", "3");
    lab.stop(server);
    let server = lab.serve(&disks);
    assert_eq!(lab.array()["degraded"], 1);
    let said = lab.md(&["add", "md/data", "a.img", "--wait"]);
    assert!(said.starts_with("a.img is back as member 0"), "{said}");
    let ended = server.stop();
    assert!(ended.status.success() && ended.stderr.contains("a.img"), "{}", ended.stderr);
    lab.expect_equal("a.img", "b.img");
}

#[test]
fn a_member_serves_until_a_spare_has_its_place() {
    let lab = Lab::new();
    let disks = ["a.img", "b.img", "s.img"];
    lab.create("1", &disks, 64 * MIB, &["--assume-clean", "--raid-devices", "2", "--spare-devices", "1"]);
    let server = lab.serve(&disks);
    load(&lab.socket(), &["--export", "md/data", "--rw", "write", "--bs", "256k", "--ios", "200"]);
    let said = lab.md(&["replace", "md/data", "a.img", "--with", "s.img", "--wait"]);
    assert!(
        said.starts_with("a.img of md/data is being replaced, and serves until that is done\n"),
        "{said}"
    );
    assert_eq!((&lab.member(0)["name"], &lab.member(0)["state"]), (&"s.img".into(), &"in_sync".into()));
    assert_eq!((lab.state("a.img"), lab.array()["degraded"].as_u64()), ("faulty".into(), Some(0)));
    let said = lab.refused(&["replace", "md/data", "b.img"]);
    assert!(said.contains("md/data has no spare"), "{said}");
    lab.stop(server);
    lab.expect_equal("s.img", "b.img");
}

#[test]
fn a_check_counts_what_differs_and_a_repair_makes_it_equal() {
    let lab = Lab::new();
    let disks = ["a.img", "b.img"];
    lab.create("1", &disks, 64 * MIB, &["--assume-clean"]);
    lab.plant("b.img", 32 * MIB, &[0xee; 512]);
    // Here, without a server.
    let idle = |verb: &str| lab.md_json(&[verb, "md/data", "--json", "--disk", "a.img", "b.img"]);
    let said = idle("check");
    let found = said["array"]["sync"]["mismatch_sectors"].as_u64().unwrap();
    assert!((1..=128).contains(&found), "{found}");
    let expected = format!("check is done: mismatch_cnt {found} ");
    assert!(said["said"].as_str().unwrap().contains(&expected), "also if nobody has seen it run: {said}");
    assert!(!lab.is_equal("a.img", "b.img"), "a check writes nothing");
    // By a server, and by curl.
    let server = lab.serve(&disks);
    assert_eq!(lab.mismatches_of_check(), found);
    let (answer, status) = lab.curl(r#"{"array": "md/data", "verb": "repair"}"#);
    assert_eq!((status, answer["said"].as_str()), (200, Some("md/data: repair has begun")), "{answer}");
    let (answer, status) = lab.curl(r#"{"array": "md/data", "verb": "wait", "millis": 30000}"#);
    assert_eq!((status, &answer["at_rest"]), (200, &true.into()), "{answer}");
    assert_eq!(answer["array"]["sync"]["mismatch_sectors"], found);
    assert!(
        lab.metrics().contains(&format!("\nblockwork_md_mismatch_sectors{{array=\"md/data\"}} {found}\n"))
    );
    assert_eq!(lab.mismatches_of_check(), 0);
    lab.stop(server);
    lab.expect_equal("a.img", "b.img");
    assert_eq!(idle("check")["array"]["sync"]["mismatch_sectors"], 0);
}

/// Begins to fill `c.img` as a member of a degraded RAID1, slowly, ends the server at about the middle, and has the next one go
/// on.
fn goes_on_after(end: impl FnOnce(support::Server) -> support::Ended, from_checkpoint: bool) {
    let lab = Lab::new();
    lab.create("1", &["a.img", "b.img"], 64 * MIB, &["--assume-clean"]);
    let server = lab.serve(&["a.img", "b.img"]);
    load(&lab.socket(), &["--export", "md/data", "--rw", "write", "--bs", "256k", "--ios", "240"]);
    lab.md(&["fail", "md/data", "b.img"]);
    lab.md(&["remove", "md/data", "b.img"]);
    lab.md(&["sync-speed", "md/data", "--min", "100", "--max", "16000"]);
    lab.blank("c.img", 64 * MIB);
    lab.md(&["add", "md/data", "c.img"]);
    until("half of it is filled", || lab.share_done() > 0.4);
    let metrics = lab.metrics();
    assert!(metrics.contains("\nblockwork_md_sync_active{array=\"md/data\"} 1\n"), "{metrics}");
    let ended = end(server);
    assert!(ended.took < Duration::from_secs(10), "{:?}", ended.took);
    let disks = ["a.img", "c.img"];
    let found = lab.md_json(&["status", "md/data", "--json", "--disk", "a.img", "c.img"]);
    let recovered = found["arrays"][0]["devices"][1]["recovered"].as_u64().expect("it is not in sync");
    assert!(!from_checkpoint || recovered > 20 * MIB, "{found}");
    let server = lab.serve(&disks);
    lab.md(&["wait", "md/data"]);
    assert_eq!(lab.array()["degraded"], 0);
    let ended = server.stop();
    assert!(ended.status.success(), "{}", ended.stderr);
    let stats = support::Stats::all(&ended.stderr).remove(0);
    let written = stats.count("c.img", "write_bytes");
    assert!(written <= 66 * MIB - recovered, "{written} bytes after {recovered} had been filled");
    lab.expect_equal("a.img", "c.img");
}

#[test]
fn a_server_that_is_asked_to_end_leaves_a_checkpoint_for_the_next() {
    goes_on_after(
        |server| {
            let ended = server.stop();
            assert!(ended.status.success(), "{}", ended.stderr);
            ended
        },
        true,
    );
}

#[test]
fn what_was_being_filled_when_the_server_was_killed_is_filled_by_the_next() {
    goes_on_after(support::Server::kill, false);
}

#[test]
fn an_array_that_nobody_serves_is_filled_here_and_a_signal_leaves_it_for_later() {
    let lab = Lab::new();
    lab.create("10", &["a.img", "missing"], 64 * MIB, &["--assume-clean"]);
    lab.blank("b.img", 64 * MIB);
    let args = ["md", "add", "md/data", "b.img", "--sync-speed-max", "8000", "--disk", "a.img"];
    // Its terminal goes. Whoever runs these tests may have that ignored.
    let mut command = tool("env");
    command.current_dir(lab.scratch.path("")).env("BLOCKWORK_RUN_DIR", lab.scratch.run_dir());
    let filling = Background::start(command.args(["--default-signal=HUP", BLOCKWORK]).args(args));
    let on_disks = || lab.md_json(&["status", "--json", "--disk", "a.img", "b.img"]);
    until("it is being filled", || on_disks()["arrays"][0]["devices"][1]["state"] == "recovering");
    filling.signal(Signal::HUP);
    let (code, said) = filling.finish();
    assert_eq!(code, Some(1), "{said}");
    assert!(
        said.contains("recover was stopped at ") && said.contains("md wait md/data --disk a.img b.img"),
        "{said}"
    );
    assert!(!said.contains('\r'), "no bar where nobody looks: {said:?}");
    assert_eq!(on_disks()["arrays"][0]["degraded"], 1);
    let done = lab.md_json(&["wait", "md/data", "--json", "--disk", "a.img", "b.img"]);
    assert_eq!(done["array"]["degraded"], 0, "{done}");
    lab.expect_equal("a.img", "b.img");
}

#[test]
fn what_cannot_be_done_is_refused_with_the_reason_and_the_remedy() {
    let lab = Lab::new();
    let disks = ["a.img", "b.img", "c.img", "d.img"];
    lab.create("10", &disks, 64 * MIB, &["--assume-clean"]);
    let said = lab.refused(&["check", "md/data"]);
    assert!(
        said.contains("no running server serves the array md/data") && said.contains("--disk DISK..."),
        "{said}"
    );
    // Nobody is told to use an option that there is not.
    for verb in ["sync-speed", "stop-sync", "start-sync"] {
        let said = lab.refused(&[verb, "md/data"]);
        let is_told = said.contains("no running server serves the array md/data")
            && said.contains("serve the array first");
        assert!(is_told && !said.contains("--disk"), "{said}");
        let help = run(&mut lab.scratch.blockwork(["md", verb, "--help"]));
        assert!(help.contains("There is no --disk: ") && !help.contains("--disk <"), "{help}");
    }
    let server = lab.serve(&disks);
    lab.blank("small.img", 8 * MIB);
    lab.scratch.noise("other.img", 1000, 1);
    for (args, words) in [
        (&["fail", "md/data", "z.img"][..], &["no device z.img", "a.img"][..]),
        (&["remove", "md/data", "a.img"], &["in use", "fail it first"]),
        (
            &["add", "md/data", "small.img"],
            &["small.img has 16384 sectors", "needs 131072", "take a larger disk"],
        ),
        (&["add", "md/data", "none.img"], &["none.img"]),
        (&["add", "md/data", "a.img"], &["belongs to md/data already"]),
        (&["grow", "md/data"], &["nothing to grow to"]),
        (&["check", "md/other"], &["no running server serves the array md/other; served are: md/data"]),
        (&["check", "md/data", "--disk", "a.img"], &["locked by process", "without --disk"]),
        (&["sync-speed", "md/data", "--min", "9", "--max", "3"], &["9 to 3 KiB/s"]),
        (&["sync-speed", "md/data", "--disk", "a.img"], &["unexpected argument '--disk'"]),
        (&["stop-sync", "md/data", "--disk", "a.img"], &["unexpected argument '--disk'"]),
        (
            &["start-sync", "md/data"],
            &["md/data: resync begins by itself when it is due, and nothing is due"],
        ),
    ] {
        let said = lab.refused(args);
        assert!(words.iter().all(|word| said.contains(word)), "{args:?}: {said}");
    }
    let second = lab.scratch.refused(["--disk", "a.img", "b.img", "c.img", "d.img"]);
    assert!(second.contains("a.img: it is locked by process"), "{second}");
    for (body, status) in [
        (r#"{"array": "md/data", "verb": "fail", "device": "z.img"}"#, 404),
        (r#"{"array": "md/none", "verb": "check"}"#, 404),
        (r#"{"array": "md/data", "verb": "remove", "device": "0"}"#, 409),
        (r#"{"array": "md/data", "verb": "sync-speed", "min_kib": 5, "max_kib": 2}"#, 400),
        (r#"{"array": "md/data", "verb": "sync-speed", "max_kib": 0}"#, 400),
    ] {
        assert_eq!(lab.curl(body).1, status, "{body}");
    }
    // The other copy of what is on b.img.
    lab.md(&["fail", "md/data", "a.img"]);
    let said = lab.refused(&["fail", "md/data", "b.img"]);
    assert!(said.contains("b.img") && said.contains("cannot be left out"), "{said}");
    lab.stop(server);
    let said = lab.scratch.refused(["--disk", "c.img", "d.img", "md/data"]);
    assert!(said.contains("0") && said.contains("1") && said.contains("missing"), "{said}");
}

#[test]
fn what_was_stopped_goes_on_when_somebody_says_so() {
    let lab = Lab::new();
    let disks = ["a.img", "b.img"];
    lab.create("1", &disks, 64 * MIB, &[]);
    lab.plant("a.img", 48 * MIB, &[0xee; 512]);
    // The other one is what it is where nobody sets it.
    for (set, why) in
        [("md:sync_speed_max=500", "1000 to 500 KiB/s"), ("md/data:sync_speed_max=999", "1000 to 999 KiB/s")]
    {
        let said = lab.scratch.refused(["--set", set, "md/data", "--disk", "a.img", "b.img"]);
        assert!(said.contains(why) && said.contains("sync_speed_min, where it is not set"), "{said}");
    }
    let slowly = ["--set", "md:sync_speed_max=1024"];
    let server = lab.serve(&[&disks[..], &slowly].concat());
    until("the resync is under way", || lab.array()["sync"]["action"] == "resync");
    assert_eq!(lab.md(&["stop-sync", "md/data"]), "md/data: nothing is being synced\n");
    let stopped = lab.array();
    assert_eq!(stopped["sync"]["action"], "idle", "{stopped}");
    assert!(stopped["resync_from"].as_u64() < Some(48 * MIB), "{stopped}");
    let said = lab.refused(&["wait", "md/data"]);
    assert!(
        said.contains("nothing is being synced; no member is missing, but mirrors may differ from byte "),
        "{said}"
    );
    assert_eq!(lab.md(&["sync-speed", "md/data"]), "md/data is synced at 1000 to 1024 KiB/s\n");
    lab.md(&["sync-speed", "md/data", "--max", "1000000"]);
    assert_eq!(lab.md(&["sync-speed", "md/data"]), "md/data is synced at 1000 to 1000000 KiB/s\n");
    assert_eq!(lab.array()["sync"]["action"], "idle", "a limit is no request");
    assert_eq!(lab.md(&["start-sync", "md/data"]), "md/data: resync goes on\n");
    lab.md(&["wait", "md/data"]);
    assert!(lab.array()["resync_from"].is_null(), "{}", lab.array());

    // And a recovery, by curl.
    lab.blank("c.img", 64 * MIB);
    lab.md(&["sync-speed", "md/data", "--min", "1024", "--max", "1024"]);
    lab.md(&["fail", "md/data", "b.img"]);
    lab.md(&["add", "md/data", "c.img"]);
    lab.md(&["stop-sync", "md/data"]);
    assert_eq!(lab.member(1)["state"], "recovering");
    lab.md(&["sync-speed", "md/data", "--max", "1000000"]);
    let (answer, status) = lab.curl(r#"{"array": "md/data", "verb": "sync"}"#);
    assert_eq!((status, answer["said"].as_str()), (200, Some("md/data: recover goes on")), "{answer}");
    lab.md(&["wait", "md/data"]);
    assert_eq!(lab.member(1)["state"], "in_sync");
    let (answer, status) = lab.curl(r#"{"array": "md/data", "verb": "sync"}"#);
    assert_eq!(status, 409, "{answer}");
    lab.stop(server);
    lab.expect_equal("a.img", "c.img");
}

#[test]
fn an_array_grows_into_what_its_members_have_gained() {
    let lab = Lab::new();
    let disks = ["a.img", "b.img"];
    lab.create("1", &disks, 64 * MIB, &["--assume-clean", "--bitmap", "internal", "--size", "40M"]);
    // What was left of the members, while a server has them.
    let server = lab.serve(&disks);
    assert_eq!((lab.array()["bytes"].as_u64(), lab.volume_bytes()), (Some(40 * MIB), 40 * MIB));
    let said = lab.md(&["grow", "md/data", "--size", "48M", "--wait"]);
    assert!(said.starts_with("md/data has 49152 KiB now\n"), "{said}");
    assert_eq!((lab.array()["bytes"].as_u64(), lab.volume_bytes()), (Some(48 * MIB), 48 * MIB));
    assert_eq!(lab.nbd_bytes(), 48 * MIB, "who comes now has all of it");
    assert!(lab.refused(&["grow", "md/data", "-z", "48.0001M"]).contains("expected whole KiB, or max"));
    let said = lab.refused(&["grow", "md/data", "--size", "1000000"]);
    assert!(said.contains("1000000 were asked for: make all members larger"), "{said}");
    lab.stop(server);
    // And what they have gained meanwhile.
    disks.iter().for_each(|disk| lab.resize(disk, 96 * MIB));
    let done = lab.md_json(&["grow", "md/data", "--json", "--disk", "a.img", "b.img"]);
    assert_eq!(done["array"]["degraded"], 0, "{done}");
    let server = lab.serve(&disks);
    assert!(lab.array()["bytes"].as_u64().unwrap() > 90 * MIB, "{}", lab.array());
    assert_eq!(lab.mismatches_of_check(), 0);
    lab.stop(server);
    lab.expect_equal("a.img", "b.img");
}

#[test]
fn an_array_with_superblocks_at_the_end_grows_up_to_what_lies_before_them() {
    for (level, disks) in [("1", &["a.img", "b.img"][..]), ("10", &["a.img", "b.img", "c.img", "d.img"])] {
        let scratch = Scratch::new();
        disks.iter().for_each(|disk| drop(scratch.sparse(disk, 64 * MIB)));
        let count = disks.len().to_string();
        let made = ["--level", level, "--raid-devices", &count, "--metadata", "1.0", "--bitmap", "internal"];
        let made = [&["md", "create", "--name", "data", "--size", "32M", "--assume-clean"][..], &made, disks];
        run(&mut scratch.blockwork(made.concat()));
        let lab = Lab { scratch };
        let server = lab.serve(disks);
        load(&lab.socket(), &["--export", "md/data", "--rw", "write", "--bs", "256k", "--ios", "100"]);
        lab.stop(server);
        let room = |disk: &str| lab.md_json(&["examine", "--json", disk])[0]["data_size"].as_u64().unwrap();
        let before = room(disks[0]);
        let here = [&["grow", "md/data", "--json", "--disk"][..], disks].concat();
        let done = lab.md_json(&here);
        let grown = done["array"]["bytes"].as_u64().unwrap();
        let copies = if level == "1" { 1 } else { 2 };
        assert!((before - MIB..=before).contains(&(grown / copies)), "{grown} with {before} of each");
        // What a client writes to the end of the array lies before bitmap, list and superblock.
        let server = lab.serve(disks);
        let last = format!("{}+4m", grown / MIB * MIB - 4 * MIB);
        load(
            &lab.socket(),
            &["--export", "md/data", "--rw", "write", "--bs", "64k", "--ios", "64", "--range", &last],
        );
        assert_eq!(lab.mismatches_of_check(), 0);
        lab.stop(server);
        for disk in disks {
            assert_eq!(room(disk), before, "{disk}");
            let said = run(tool("mdadm").arg("--examine").arg(lab.scratch.path(disk)));
            let words =
                ["Version : 1.0", "State : clean", "Internal Bitmap : ", "Bad Block Log", " - correct"];
            assert!(words.iter().all(|word| said.contains(word)), "{disk}: {said}");
        }
        let said = lab.refused(&here);
        assert!(said.contains("nothing to grow to"), "{said}");
    }
}

#[test]
fn arrays_on_disks_are_shown_as_they_are_written_down() {
    let lab = Lab::new();
    let disks = ["a.img", "b.img", "s.img"];
    lab.create("1", &disks, 32 * MIB, &["--assume-clean", "--raid-devices", "2", "--spare-devices", "1"]);
    let here = [&["--disk"][..], &disks].concat();
    let states = |more: &[&str]| {
        let shown = lab.md_json(&[&["status", "--json"][..], &here, more].concat())["arrays"][0].clone();
        assert_eq!(shown["events"], lab.md_json(&["examine", "--json", "a.img"])[0]["events"], "{shown}");
        let text = |value: &serde_json::Value| value.as_str().expect("text").to_owned();
        let devices = shown["devices"].as_array().expect("a list").clone();
        devices.iter().map(|it| format!("{} {}", text(&it["name"]), text(&it["state"]))).collect::<Vec<_>>()
    };
    assert_eq!(states(&[]), ["a.img in_sync", "b.img in_sync", "s.img spare"]);
    lab.md(&[&["fail", "md/data", "1"][..], &here].concat());
    let said = lab.md(&[&["wait", "md/data"][..], &here].concat());
    assert!(said.ends_with("all members are in sync\n"), "{said}");
    assert_eq!(states(&[]), ["a.img in_sync", "s.img in_sync", "b.img faulty"]);
    lab.blank("t.img", 32 * MIB);
    let said = lab.refused(&[&["add", "md/data", "t.img", "none.img"][..], &here].concat());
    assert!(said.contains("none.img: open") && said.contains("before that: t.img is a spare"), "{said}");
    assert_eq!(states(&["t.img"])[3], "t.img spare");
}

#[test]
fn where_nothing_is_to_be_shown_that_is_said() {
    let scratch = Scratch::new();
    for (command, said) in [
        (
            &["md", "status"][..],
            "there is no array of a running server (of this user); add --disk DISK... for what no server has",
        ),
        (&["md", "detail", "--disk", "memory:1M"], "there is no array on these disks"),
        (&["status"], "no server is running (of this user) that has a disk"),
    ] {
        let shown = output(&mut scratch.blockwork(command));
        assert!(shown.status.success() && shown.stdout.is_empty(), "{shown:?}");
        let stderr = String::from_utf8_lossy(&shown.stderr);
        assert!(stderr.contains(said), "{command:?}: {stderr}");
    }
}

/// Its file system has no room for what it is to be filled with.
#[test]
fn a_spare_that_fails_while_it_takes_a_members_place_is_no_success_and_the_member_stays() {
    let lab = Lab::new();
    lab.create("1", &["a", "b"], 16 * MIB, &["--assume-clean"]);
    lab.blank("c", 16 * MIB);
    let _small = SmallDisk::new(&lab.scratch, "c", 16, 4);
    let disks = ["--disk", "a", "b"];
    lab.md(&[&["add", "md/data", "c"], &disks[..]].concat());
    let said = lab.refused(&[&["replace", "md/data", "b"], &disks[..], &["c"]].concat());
    let expected = "error: c has failed meanwhile; md/data goes on without it: all members are in sync";
    assert!(said.contains(expected), "{said}");
    let server = lab.serve(&["a", "b"]);
    lab.blank("d", 16 * MIB);
    lab.md(&["add", "md/data", &lab.scratch.at("d")]);
    // Who is replaced is to go.
    lab.md(&["replace", "md/data", "b", "--wait"]);
    assert_eq!((lab.state("a"), lab.state("b")), ("in_sync".into(), "faulty".into()));
    // However it is named.
    lab.md(&["remove", "md/data", "b"]);
    lab.blank("e", 16 * MIB);
    lab.md(&["add", "md/data", &lab.scratch.at("e")]);
    lab.md(&["replace", "md/data", "d", "--wait"]);
    lab.md(&["remove", "md/data", "failed"]);
    lab.md(&["add", "md/data", &lab.scratch.at("d"), "--force"]);
    lab.md(&["replace", "md/data", "0", "--wait"]);
    lab.stop(server);
}

#[test]
fn a_disk_without_room_is_not_taken_in_and_the_answer_says_so() {
    let lab = Lab::new();
    lab.create("1", &["a", "b"], 16 * MIB, &["--assume-clean"]);
    lab.blank("c", 16 * MIB);
    let small = SmallDisk::new(&lab.scratch, "c", 16, 4);
    small.fill_up();
    let add = ["add", "md/data", "c", "--disk", "a", "b"];
    let said = lab.refused(&add);
    let expected = "c is not taken in, and can be added when it is well again: what was at sector ";
    assert!(said.contains(expected), "{said}");
    small.make_room();
    lab.md(&add);
}

#[test]
fn the_partition_that_is_named_fails_and_no_other_disks_of_that_number() {
    let lab = Lab::new();
    let table = lab.scratch.write("table", "label: gpt\nsize=16M\n");
    for disk in ["a.img", "b.img", "c.img"] {
        lab.blank(disk, 20 * MIB);
        run(tool("sh").args(["-c", &format!("exec sfdisk --quiet {} <{table}", lab.scratch.at(disk))]));
    }
    let members = ["a.img/1", "b.img/1", "c.img/1"];
    let create = ["create", "--level", "1", "--raid-devices", "3", "--name", "data", "--assume-clean"];
    lab.md(&[&create[..], &members].concat());
    let server = lab.serve(&["a.img", "b.img", "c.img"]);
    assert_eq!(lab.md(&["fail", "md/data", "c.img/1"]), "disk/c.img/1 of md/data is given up\n");
    assert_eq!(lab.member(0)["state"], "in_sync");
    let said = lab.refused(&["fail", "md/data", "d.img/1"]);
    assert!(said.contains("md/data has no device d.img/1; it has disk/a.img/1, disk/b.img/1"), "{said}");
    assert_eq!(
        lab.md(&["remove", "md/data", &lab.scratch.at("c.img/1")]),
        "removed from md/data: disk/c.img/1\n"
    );
    // A number alone is a role, though it ends the paths of all.
    assert_eq!(lab.md(&["fail", "md/data", "1"]), "disk/b.img/1 of md/data is given up\n");
    assert_eq!(lab.member(0)["state"], "in_sync");
    lab.stop(server);
}

//! Legs of RAID volumes whose disk was away while others were written to: who only reads leaves them out, who writes fills them, and
//! both say so. (What Linux makes of it is in `../kernel/lvm_legs.rs`.)

use std::collections::{BTreeMap, BTreeSet};

use crate::support::lvm::Lab;
use crate::support::nbd::python;
use crate::support::{run, run_refused, until};
use serde_json::Value;

const DISKS: [&str; 4] = ["a", "b", "c", "d"];
/// Without the disk of the second leg of each.
const REST: [&str; 3] = ["a", "c", "d"];
const VOLUMES: [&str; 3] = ["mirror", "ten", "parity"];

/// All volumes and their parts, as they are shown of these disks; of none: by their server.
fn shown(lab: &Lab, disks: &[&str]) -> BTreeMap<String, Value> {
    let mut args = vec!["lv", "show", "--all", "--json", "vg"];
    args.extend(disks.first().map(|_| "--disk"));
    args.extend(disks);
    let all: Vec<Value> = serde_json::from_str(&run(&mut lab.scratch.blockwork(args))).expect("JSON");
    all.into_iter().map(|volume| (volume["name"].as_str().expect("a name").to_owned(), volume)).collect()
}

/// Those of which this is wrong.
fn of_health(shown: &BTreeMap<String, Value>, health: &str) -> BTreeSet<String> {
    shown.iter().filter(|(_, volume)| volume["health"] == health).map(|(name, _)| name.clone()).collect()
}

fn second_leg(shown: &BTreeMap<String, Value>, volume: &str) -> String {
    shown[volume]["legs"][1]["state"].as_str().expect("it has legs").to_owned()
}

fn write(lab: &Lab, volume: &str, byte: char, at: u64) {
    let uri = lab.scratch.uri(&format!("vg/{volume}"));
    python(&format!("h = connect({uri:?})\nh.pwrite(b'{byte}' * 65536, {at})\nh.flush()\nh.shutdown()\n"));
}

fn expect(lab: &Lab, volume: &str, byte: char, at: u64) {
    let uri = lab.scratch.uri(&format!("vg/{volume}"));
    python(&format!(
        "h = connect({uri:?})\nassert h.pread(65536, {at}) == b'{byte}' * 65536\nh.shutdown()\n"
    ));
}

#[test]
fn a_leg_whose_disk_was_away_is_filled_by_who_serves_the_volume_to_be_written() {
    let lab = Lab::new(&DISKS.map(|disk| (disk, 81)));
    lab.verb(&["vg", "create", "vg", "a", "b", "c", "d"]);
    lab.verb(&["lv", "create", "vg/mirror", "--type", "raid1", "--mirrors", "2", "--size", "8M", "--nosync"]);
    lab.verb(&["lv", "create", "vg/ten", "--type", "raid10", "--stripes", "2", "--size", "16M", "--nosync"]);
    lab.verb(&["lv", "create", "vg/parity", "--type", "raid5", "--size", "16M"]);
    let all = [&["--disk"], &DISKS[..]].concat();
    let rest = [&["--disk"], &REST[..]].concat();
    let server = lab.scratch.serve(&all);
    let is_whole = |shown: &BTreeMap<String, Value>| {
        VOLUMES.iter().all(|volume| {
            let legs = shown[*volume]["legs"].as_array().expect("it has legs");
            legs.iter().all(|leg| leg["state"] == "in_sync") && shown[*volume]["sync"]["action"] == "idle"
        })
    };
    VOLUMES.iter().for_each(|volume| write(&lab, volume, 'o', 1 << 20));
    until("they are in sync", || {
        is_whole(&shown(&lab, &[])) && shown(&lab, &[])["parity"]["sync_percent"] == 100.0
    });
    assert!(server.stop().status.success());

    // Missing, to us as to LVM.
    let partial = of_health(&shown(&lab, &REST), "partial");
    assert_eq!(partial, lab.partial_by_lvm("b"));
    assert!(partial.contains("parity") && partial.contains("parity_rimage_1"), "{partial:?}");
    let server = lab.scratch.serve(&rest);
    VOLUMES.iter().for_each(|volume| write(&lab, volume, 'n', 1 << 20));
    assert_eq!(of_health(&shown(&lab, &[]), "partial"), partial);
    server.stop();

    // There again, and not to be read.
    let stale: BTreeSet<String> = VOLUMES
        .iter()
        .flat_map(|volume| [volume.to_string(), format!("{volume}_rimage_1"), format!("{volume}_rmeta_1")])
        .collect();
    assert_eq!(of_health(&shown(&lab, &DISKS), "refresh needed"), stale);
    let table = run(&mut lab.scratch.blockwork(lab.args(&["lv", "show", "vg/mirror"])));
    assert!(table.contains("  Health  ") && table.contains("  refresh needed  "), "{table}");
    assert!(table.contains("  Attr        ") && table.contains("  Rwi---r-r-  "), "{table}");
    let before = lab.bytes();
    let server = lab.scratch.serve([&all[..], &["--read-only"]].concat());
    VOLUMES.iter().for_each(|volume| expect(&lab, volume, 'n', 1 << 20));
    assert_eq!(of_health(&shown(&lab, &[]), "refresh needed"), stale);
    let said = server.stop().stderr;
    for volume in VOLUMES {
        let told = format!("{volume}_rimage_1: it ");
        let line = said.lines().find(|line| line.contains(&told)).unwrap_or_else(|| panic!("{said}"));
        assert!(line.ends_with("it is left out; whoever serves the volume to be written fills it"), "{line}");
    }
    assert!(lab.bytes() == before, "who only reads has written");
    let refused = run_refused(&mut lab.scratch.blockwork([
        "serve",
        "--nbd",
        "unix:socket",
        "vg/parity",
        "--disk",
        "b",
        "c",
        "d",
    ]));
    assert!(
        refused.contains("legs 0 (missing), 1 (out of date) of 3 are missing or out of date"),
        "{refused}"
    );

    // It is filled, which takes its time; and takes writes meanwhile.
    let slowly = ["--set", "raid:sync_speed_min=1", "--set", "raid:sync_speed_max=1"];
    let server = lab.scratch.serve([&all[..], &slowly].concat());
    for volume in VOLUMES {
        until("it is being filled", || shown(&lab, &[])[volume]["sync"]["action"] == "recover");
        expect(&lab, volume, 'n', 1 << 20);
        write(&lab, volume, 'm', 3 << 20);
        let now = shown(&lab, &[]);
        assert_eq!((second_leg(&now, volume), &now[volume]["health"]), ("recovering".into(), &Value::Null));
        assert!(now[volume]["sync_percent"].as_f64().is_some_and(|percent| percent < 100.0));
    }
    let said = server.stop().stderr;
    let told = "it comes back, and is filled where it was written to meanwhile";
    assert_eq!(said.matches(told).count(), VOLUMES.len(), "{said}");
    assert_eq!(of_health(&shown(&lab, &DISKS), "refresh needed"), stale, "half filled, it is none");

    let server = lab.scratch.serve(&all);
    until("they are whole", || is_whole(&shown(&lab, &[])));
    server.stop();
    assert_eq!(of_health(&shown(&lab, &DISKS), "refresh needed"), BTreeSet::new());
    lab.expect_sound();
    // Each of its own legs now, without the one that had the data meanwhile.
    let server = lab.scratch.serve(["--read-only", "--disk", "b", "c", "d"]);
    for volume in VOLUMES {
        expect(&lab, volume, 'n', 1 << 20);
        expect(&lab, volume, 'm', 3 << 20);
    }
    server.stop();
}

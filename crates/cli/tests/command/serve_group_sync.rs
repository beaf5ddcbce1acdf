//! How much of RAID volumes is in sync, as their server, its metrics and their disks tell it. (`lvs` itself is asked in
//! `../kernel/lvm_writes.rs`.)

use crate::support::lvm::Lab;
use crate::support::nbd::python;
use crate::support::{run, tool, until};
use serde_json::Value;

/// What is shown of a volume: by the server that has it, or from the disks.
fn shown(lab: &Lab, name: &str, is_served: bool) -> Value {
    let verb = ["lv", "show", "--json", name];
    let args = if is_served { verb.to_vec() } else { lab.args(&verb) };
    let mut all: Value = serde_json::from_str(&run(&mut lab.scratch.blockwork(args))).expect("JSON");
    all[0].take()
}

fn percent(shown: &Value) -> f64 {
    shown["sync_percent"].as_f64().unwrap_or_else(|| panic!("{shown}"))
}

/// What the one server that runs tells a scraper of arrays.
fn gauges(lab: &Lab) -> String {
    let sockets = std::fs::read_dir(lab.scratch.path("run")).expect("the folder of control sockets");
    let socket = sockets.map(|entry| entry.expect("it can be read").path()).next().expect("a server's");
    let mut curl = tool("curl");
    curl.args(["-sS", "--max-time", "60", "--unix-socket"]).arg(socket).arg("http://localhost/metrics");
    run(&mut curl).lines().filter(|line| line.starts_with("blockwork_md_")).collect::<Vec<_>>().join("\n")
}

fn gauge(lab: &Lab, name: &str, volume: &str) -> Option<f64> {
    let all = gauges(lab);
    let head = format!("blockwork_md_{name}{{array=\"{volume}\"}} ");
    all.lines().find_map(|line| line.strip_prefix(&head)?.parse().ok())
}

/// Of the volumes below: one region of a bitmap.
const REGION_PERCENT: f64 = 100.0 * 2.0 / 48.0;

#[test]
fn how_much_of_a_raid_volume_is_in_sync_is_told_while_it_is_served_and_of_its_disks() {
    let lab = Lab::new(&[("a", 121), ("b", 121), ("c", 121)]);
    lab.verb(&["vg", "create", "vg", "a", "b", "c"]);
    lab.verb(&["lv", "create", "vg/mirror", "--type", "raid1", "--size", "48M"]);
    lab.verb(&["lv", "create", "vg/parity", "--type", "raid5", "--size", "96M"]);
    lab.verb(&["lv", "create", "vg/whole", "--type", "raid1", "--size", "4M", "--nosync"]);
    lab.verb(&["lv", "create", "vg/linear", "--size", "4M"]);
    let at_rest = |name: &str| shown(&lab, name, false);
    assert_eq!(["vg/mirror", "vg/parity", "vg/whole"].map(|name| percent(&at_rest(name))), [0.0, 0.0, 100.0]);
    assert!(at_rest("vg/linear")["sync_percent"].is_null() && at_rest("vg/mirror")["sync"].is_null());

    let slowly = ["--set", "raid:sync_speed_min=4096", "--set", "raid:sync_speed_max=4096"];
    let server = lab.scratch.serve([&["--disk", "a", "b", "c"][..], &slowly].concat());
    let served = |name: &str| shown(&lab, name, true);
    for name in ["vg/mirror", "vg/parity"] {
        until("it is being resynced", || percent(&served(name)) > 2.0 * REGION_PERCENT);
        let now = served(name);
        let sync = &now["sync"];
        let [done, total] =
            ["done_sectors", "total_sectors"].map(|key| sync[key].as_f64().expect("a number"));
        assert_eq!((&sync["action"], total), (&"resync".into(), 48.0 * 2048.0), "{now}: a leg of each");
        assert_eq!(percent(&now), done * 100.0 / total);
        assert_eq!(gauge(&lab, "sync_active", name), Some(1.0), "{}", gauges(&lab));
        assert!(gauge(&lab, "sync_progress_ratio", name).is_some_and(|it| it > 0.05 && it < 1.0));
    }
    let members = ["vg/mirror", "vg/parity", "vg/linear"].map(|name| gauge(&lab, "members", name));
    assert_eq!(members, [Some(2.0), Some(3.0), None]);
    assert_eq!(gauge(&lab, "degraded_members", "vg/mirror"), Some(0.0));
    let whole = served("vg/whole");
    assert_eq!((percent(&whole), &whole["sync"]["action"]), (100.0, &"idle".into()));
    assert!(served("vg/linear")["sync"].is_null());
    let table = run(&mut lab.scratch.blockwork(["lv", "show"]));
    assert!(table.contains("  Cpy%Sync  ") && table.contains("  raid5, resync  "), "{table}");
    let seen = ["vg/mirror", "vg/parity"].map(|name| percent(&served(name)));
    assert!(server.stop().status.success());

    // What the bitmaps have, by whole regions.
    for (name, seen) in ["vg/mirror", "vg/parity"].into_iter().zip(seen) {
        let found = percent(&at_rest(name));
        assert!((seen - REGION_PERCENT..100.0).contains(&found), "{name}: {found}, and it was {seen} before");
    }

    let server = lab.scratch.serve(["--disk", "a", "b", "c"]);
    for name in ["vg/mirror", "vg/parity"] {
        until("it is in sync", || {
            served(name)["sync"]["action"] == "idle" && percent(&served(name)) == 100.0
        });
        assert_eq!(gauge(&lab, "sync_active", name), Some(0.0), "{}", gauges(&lab));
    }
    run(&mut lab.scratch.blockwork(["lv", "rename", "vg/mirror", "vg/renamed"]));
    run(&mut lab.scratch.blockwork(["lv", "remove", "vg/parity"]));
    let active = ["vg/mirror", "vg/renamed", "vg/parity"].map(|name| gauge(&lab, "sync_active", name));
    assert_eq!(active, [None, Some(0.0), None]);
    assert!(server.stop().status.success());
    assert_eq!(percent(&at_rest("vg/renamed")), 100.0);

    // What is written without a leg is what that one lacks, and no other; scrapers hear that it is missing.
    let server = lab.scratch.serve(["--disk", "a", "c"]);
    assert_eq!(gauge(&lab, "degraded_members", "vg/renamed"), Some(1.0), "{}", gauges(&lab));
    let uri = lab.scratch.uri("vg/renamed");
    python(&format!("h = connect({uri:?})\nh.pwrite(b'x' * 65536, 8 << 20)\nh.flush()\nh.shutdown()\n"));
    until("it is at rest", || served("vg/renamed")["sync"]["action"] == "idle");
    assert_eq!(percent(&served("vg/renamed")), 100.0);
    assert!(server.stop().status.success());
    assert_eq!(percent(&at_rest("vg/renamed")), 100.0);
}

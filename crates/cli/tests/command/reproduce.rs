//! `reproduce`: what it prints, and that the old behaviour which it shows can be had on a real array.

use crate::support;
use crate::support::nbd::python;
use crate::support::{Scratch, run};

#[test]
fn the_report_on_discards_is_run_again() {
    let scratch = Scratch::new();
    let said = run(&mut scratch.blockwork(["reproduce", "discard", "--stack", "raid0", "--json"]));
    let json: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!(json["name"], "discard");
    let rows = json["rows"].as_array().expect("rows");
    let mkfs = rows.iter().find(|row| row["client"] == "mkfs.xfs (2020)").expect("a row of mkfs.xfs");
    assert_eq!((&mkfs["behaviour"], &mkfs["report_seconds"]), (&"new".into(), &4.0.into()));
    assert_eq!(mkfs["devices"].as_array().map(Vec::len), Some(4));
    assert_eq!(mkfs["devices"][3]["discards"], 2);
    let seconds = mkfs["seconds"].as_f64().expect("a number");
    assert!((0.1..4.0).contains(&seconds), "{seconds}");
    let text = run(&mut scratch.blockwork(["reproduce", "discard", "--stack", "raid0"]));
    for part in
        ["launchpad.net/bugs/1896578", "REQUESTS PER MEMBER", "2 discards, 2038 writes", "What was simulated"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn the_report_on_merging_is_run_again() {
    let scratch = Scratch::new();
    let said = run(&mut scratch.blockwork(["reproduce", "merge", "--json"]));
    let json: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!((&json["name"], &json["calibration"]), (&"merge".into(), &serde_json::Value::Null));
    let rows = json["rows"].as_array().expect("rows");
    for (row, behaviour, reported, reads) in [(0, "old", 42.693, 131_072), (1, "new", 1.773, 4_095)] {
        let row = &rows[row];
        assert_eq!((&row["behaviour"], &row["report_seconds"]), (&behaviour.into(), &reported.into()));
        assert_eq!(row["devices"][0]["reads"], reads);
        let seconds = row["seconds"].as_f64().expect("a number");
        assert!((0.75..1.25).contains(&(seconds / reported)), "{seconds}");
    }
    assert_eq!(json["rates"][2]["report_mb_per_second"], 12.52);
    let text = run(&mut scratch.blockwork(["reproduce", "merge"]));
    for part in
        ["launchpad.net/bugs/1833319", "131072 reads", "42.693 s", "12.45 MB/s", "  D   R 837632 + 512"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn the_report_on_thin_volumes_is_run_again_on_a_model_and_on_this_machine() {
    let scratch = Scratch::new();
    let reads = |more: &[&str]| {
        let said = run(scratch.blockwork(["reproduce", "thin", "--json"]).args(more));
        let json: serde_json::Value = serde_json::from_str(&said).expect("JSON");
        assert_eq!(json["name"], "thin");
        json["reads"].as_array().expect("reads").clone()
    };
    let rows = |reads: &[serde_json::Value]| -> Vec<(String, String)> {
        let word = |row: &serde_json::Value, key: &str| row[key].as_str().expect("a word").to_owned();
        reads.iter().map(|row| (word(row, "stack"), word(row, "behaviour"))).collect()
    };
    let (model, real) = (reads(&[]), reads(&["--real"]));
    for (row, reported) in [(0, 560_000.0), (1, 200_000.0), (3, 29_417.0)] {
        assert_eq!(model[row]["report_iops"], reported);
        let ratio = model[row]["iops"].as_f64().expect("a number") / reported;
        assert!((0.93..1.07).contains(&ratio), "{}", model[row]);
    }
    assert_eq!(rows(&real), rows(&model));
    for row in &real {
        assert!(row["report_iops"].is_null() && row["iops"].as_f64().is_some_and(|iops| iops > 0.0), "{row}");
        let is_request = row["device"]["reads"].as_u64().is_some_and(|reads| reads > 0);
        assert_eq!(is_request, row["stack"] != "thin, never written", "{row}");
    }
    let text = run(&mut scratch.blockwork(["reproduce", "thin", "--real"]));
    for part in ["dm-devel mailing list", "thin, two pools", "This machine, now"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains("What was simulated"), "{text}");
}

#[test]
fn the_report_on_rings_is_run_again() {
    let scratch = Scratch::new();
    let said = run(&mut scratch.blockwork(["reproduce", "ring", "--json"]));
    let json: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    let rings = json["rings"].as_array().expect("rings");
    let iops = |pages: u64, in_flight: u64| {
        let is_it = |ring: &&serde_json::Value| {
            !ring["report_iops"].is_null() && ring["ring_pages"] == pages && ring["in_flight"] == in_flight
        };
        rings.iter().find(is_it).expect("a row of the report")["iops"].as_f64().expect("a number")
    };
    assert!((18e3..20e3).contains(&iops(1, 4)), "{}", iops(1, 4));
    assert!(iops(8, 256) / iops(1, 256) > 1.58, "{} {}", iops(8, 256), iops(1, 256));
    let text = run(&mut scratch.blockwork(["reproduce", "ring"]));
    for part in ["multi-page ring support", "IN FLIGHT  REPORT  1 PAGE", "19 K*", "209 K", "READS/REQUEST"] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn what_the_report_on_rings_has_of_sequential_reads_is_run_alone() {
    let scratch = Scratch::new();
    let said = run(&mut scratch.blockwork(["reproduce", "sequential", "--json"]));
    let json: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    let rings = json["rings"].as_array().expect("rings");
    assert!(rings.iter().all(|ring| ring["client"] == "sequential reads of 4 KiB"), "{said}");
    let iops = |pages: u64, merged: bool| {
        let is_it = |ring: &&serde_json::Value| {
            ring["ring_pages"] == pages && ring["is_merged_at_leaf"] == merged && ring["in_flight"] == 128
        };
        rings.iter().find(is_it).expect("a row")["iops"].as_f64().expect("a number")
    };
    assert!(iops(1, false) > 2.5 * iops(8, false) && iops(8, true) > iops(1, false), "{said}");
    let text = run(&mut scratch.blockwork(["reproduce", "sequential"]));
    for part in ["multi-page ring support", "READS/REQUEST", "8 PAGES, MERGED", "anomalies A and B"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.to_lowercase().contains("random reads of 4 kib; "), "{text}");
}

#[test]
fn the_report_on_elements_is_run_again() {
    let scratch = Scratch::new();
    let args = ["reproduce", "linearize", "--requests", "20000", "--kernel", "mended", "--json"];
    let said = run(&mut scratch.blockwork(args));
    let json: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    let rows = json["linearize"].as_array().expect("rows");
    assert_eq!((rows.len(), &json["calibration"]), (14, &serde_json::Value::Null));
    for row in rows {
        let part = |column: &str| row[column].as_f64().expect("a number");
        assert!(part("off") > 0.99 * part("on") && part("auto_of_better") > 0.985, "{row}");
    }
    let text = run(&mut scratch.blockwork(["reproduce", "linearize", "--requests", "100"]));
    for part in ["Linearize direct I/O", "AUTO:BETTER", "mail server", "112.0", "0.54 ns a byte"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let drift = |until: &str| {
        let args = ["--kernel", "broken-later", "--change-at", "0.25", "--change-until", until, "--json"];
        let mut command = scratch.blockwork(["reproduce", "linearize", "--requests", "1000"]);
        support::output(command.args(args))
    };
    // Vectored requests of the first row: they become dearer, at once or by and by.
    let off = |until: &str| {
        let json: serde_json::Value = serde_json::from_slice(&drift(until).stdout).expect("JSON");
        json["linearize"][0]["off"].as_f64().expect("a number")
    };
    let (at_once, little_by_little) = (off("0.25"), off("1"));
    assert!(little_by_little > 1.1 * at_once, "{little_by_little} {at_once}");
    for (output, word) in [
        (
            support::output(&mut scratch.blockwork(["reproduce", "linearize", "--kernel", "new"])),
            "--kernel new",
        ),
        (drift("0.2"), "--change-until 0.2: expected --change-at, which is 0.25, to 1"),
    ] {
        let said = support::both(&output);
        assert!(!output.status.success() && said.contains(word), "{said}");
    }
}

#[test]
fn an_array_that_there_is_not_is_refused() {
    let scratch = Scratch::new();
    let output = scratch.blockwork(["reproduce", "discard", "--stack", "n9"]).output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && said.contains("--stack n9: expected one of n2, f2, o2, raid0"),
        "{said}"
    );
}

/// Discards that the members of a RAID10 get for one of 16 MiB.
fn discards_of_members(settings: &[&str]) -> Vec<u64> {
    let scratch = Scratch::new();
    let disks = ["a.img", "b.img", "c.img", "d.img"];
    for disk in disks {
        scratch.sparse(disk, 64 << 20);
    }
    let create = [
        "md",
        "create",
        "--level",
        "10",
        "--raid-devices",
        "4",
        "--bitmap",
        "none",
        "--assume-clean",
        "--name",
        "a",
    ];
    run(&mut scratch.blockwork(create.iter().chain(&disks)));
    let all = ["--workers", "1", "--stats", "--json", "--disk"];
    let server = scratch.serve(all.iter().chain(&disks).chain(settings));
    python(&format!("h = connect({:?})\nh.trim(16 << 20, 0)\n", scratch.uri("md/a")));
    let stats = server.stop_for_stats();
    disks.map(|disk| stats.count(disk, "discards")).into()
}

#[test]
fn an_md_array_can_have_the_discard_limit_that_it_had_in_linux() {
    assert_eq!(discards_of_members(&[]), [1; 4]);
    assert_eq!(discards_of_members(&["--set", "md:discard_max_bytes=524288"]), [16; 4]);
    assert_eq!(discards_of_members(&["--set", "md/a:discard_max_bytes=524288"]), [16; 4]);
}

//! Thin pools, thin volumes and snapshots of them that our verbs make in groups: LVM's own tools read them, `thin_check` finds
//! each pool's metadata whole, and both count the same transactions.

use std::fs;

use crate::support::lvm::{EXTENT, Lab, PE_START};
use crate::support::nbd::python;
use crate::support::{Scratch, run, tool};

#[test]
fn pools_and_volumes_are_what_lvm_reads_and_the_pool_knows_them() {
    let lab = Lab::new(&[("a", 161)]);
    lab.verb(&["vg", "create", "vg", "a"]);
    let said = lab.verb(&["lv", "create", "vg/pool", "--thin-pool", "--size", "40M"]);
    assert_eq!(said, "vg/pool: a thin pool of 40M in chunks of 64K, with a map of 4M\n");
    lab.verb(&["lv", "create", "vg/one", "--thin", "pool", "-V", "1T"]);
    lab.verb(&["lv", "create", "vg/two", "--thin", "vg/pool", "--virtual-size", "10M", "--addtag", "t"]);
    lab.verb(&["lv", "snapshot", "vg/one", "--name", "snap"]);
    let expected = [
        "[lvol0_pmspare];linear;4.00;;;;",
        "one;thin;1048576.00;pool;;1;0",
        "pool;thin-pool;40.00;;;;3",
        "[pool_tdata];linear;40.00;;;;",
        "[pool_tmeta];linear;4.00;;;;",
        "snap;thin;1048576.00;pool;one;3;2",
        "two;thin;12.00;pool;;2;1",
    ];
    assert_eq!(lab.columns("lv_name,segtype,lv_size,pool_lv,origin,thin_id,transaction_id"), expected);
    let dump = lab.dumped("pool");
    assert!(dump.contains("time=\"1\" transaction=\"3\""), "{dump}");
    assert!(dump.contains("data_block_size=\"128\" nr_data_blocks=\"640\""), "{dump}");
    for device in [
        "1\" mapped_blocks=\"0\" transaction=\"0",
        "2\" mapped_blocks=\"0\" transaction=\"1",
        "3\" mapped_blocks=\"0\" transaction=\"2",
    ] {
        assert!(dump.contains(&format!("dev_id=\"{device}\"")), "{dump}");
    }

    lab.verb(&["lv", "remove", "vg/one"]);
    lab.verb(&["lv", "resize", "vg/two", "--size", "20M"]);
    lab.verb(&["lv", "resize", "vg/pool", "--size", "+8M"]);
    lab.verb(&["lv", "rename", "vg/pool", "basin"]);
    let dump = lab.dumped("basin");
    assert!(dump.contains("transaction=\"4\"") && !dump.contains("dev_id=\"1\""), "{dump}");
    let expected = [
        "basin;;48.00",
        "[basin_tdata];;48.00",
        "[basin_tmeta];;4.00",
        "[lvol0_pmspare];;4.00",
        "snap;;1048576.00",
        "two;;20.00",
    ];
    assert_eq!(lab.columns("lv_name,origin,lv_size"), expected);
    lab.verb(&["lv", "resize", "vg/basin", "--pool-metadata-size", "+4M"]);
    assert!(lab.columns("lv_name,lv_size").contains(&"[lvol0_pmspare];8.00".to_owned()));

    lab.verb(&["lv", "remove", "vg/snap", "vg/two", "vg/basin"]);
    assert_eq!(lab.columns("lv_name"), [] as [&str; 0]);
}

#[test]
fn a_pool_whose_data_is_a_raid_grows_by_all_of_its_legs_when_nobody_serves_it() {
    let lab = Lab::new(&[("a", 100), ("b", 100), ("c", 100)]);
    lab.verb(&["vg", "create", "vg", "a", "b", "c"]);
    lab.verb(&["lv", "create", "vg/pool", "--thin-pool", "--size", "16M"]);
    lab.verb(&["lv", "create", "vg/r", "--mirrors", "1", "--size", "16M"]);
    lab.put_on_raid("pool_tdata", "r");
    lab.verb(&["lv", "create", "vg/one", "--thin", "pool", "-V", "64M"]);
    lab.verb(&["lv", "resize", "vg/pool", "--size", "+7M"]);
    let expected = [
        "[lvol0_pmspare];linear;4.00",
        "one;thin;64.00",
        "pool;thin-pool;24.00",
        "[pool_tdata];raid1;24.00",
        "[pool_tdata_rimage_0];linear;24.00",
        "[pool_tdata_rimage_1];linear;24.00",
        "[pool_tdata_rmeta_0];linear;4.00",
        "[pool_tdata_rmeta_1];linear;4.00",
        "[pool_tmeta];linear;4.00",
    ];
    assert_eq!(lab.columns("lv_name,segtype,lv_size"), expected);
    let server = lab.scratch.serve(["--disk", "a", "b", "c"]);
    let script = format!(
        "h = connect({:?})\ndata = bytes(range(256)) * 4096\n\
         for mib in range(22): h.pwrite(data, mib << 20)\n\
         h.flush()\nprint(all(h.pread(1 << 20, mib << 20) == data for mib in range(22)))\n",
        lab.scratch.uri("vg/one")
    );
    assert_eq!(python(&script).trim(), "True");
    assert!(server.stop().status.success());
    assert_eq!(lab.columns("lv_name,segtype,lv_size"), expected);
    assert!(lab.dumped("pool").contains("nr_data_blocks=\"384\""), "the map knows of all that there is");
}

#[test]
fn the_answer_to_each_verb_has_the_number_that_the_text_has_then() {
    let lab = Lab::new(&[("a", 161)]);
    lab.verb(&["vg", "create", "vg", "a"]);
    for args in [
        // Written once; with messages for the pool, twice; a pool that counts what it has got, once.
        &["lv", "create", "vg/plain", "--size", "4M"][..],
        &["lv", "create", "vg/pool", "--thin-pool", "--size", "40M"],
        &["lv", "create", "vg/one", "--thin", "pool", "-V", "1G"],
        &["lv", "resize", "vg/plain", "--size", "8M"],
        &["lv", "resize", "vg/pool", "--size", "+8M"],
        &["lv", "resize", "vg/pool", "--pool-metadata-size", "+4M"],
        &["lv", "remove", "vg/one"],
        &["vg", "tag", "vg", "--addtag", "t"],
    ] {
        let said = lab.verb(&[args, &["--json"]].concat());
        let answer: serde_json::Value = serde_json::from_str(&said).expect("JSON");
        let by_lvm = lab.lvm(&["vgs --noheadings -o vg_seqno vg"]);
        assert_eq!(answer["seqno"].to_string(), by_lvm[0].trim(), "{args:?}");
    }
}

#[test]
fn a_merge_that_is_left_to_linux_is_shown_of_its_origin_and_of_the_hidden_snapshot() {
    let lab = Lab::new(&[("a", 161)]);
    lab.verb(&["vg", "create", "vg", "a"]);
    lab.verb(&["lv", "create", "vg/pool", "--thin-pool", "--size", "40M"]);
    for name in ["one", "two"] {
        lab.verb(&["lv", "create", &format!("vg/{name}"), "--thin", "pool", "-V", "8M"]);
    }
    lab.verb(&["lv", "snapshot", "vg/one", "--name", "snap"]);
    // As `lvconvert --merge vg/snap` leaves it while the origin is open.
    lab.edit("origin = \"one\"", "origin = \"one\"\nmerge = \"one\"");
    let attributes = ["[snap];merging;Swi-XXtz-k", "one;;Owi-XXtz--"];
    let by_lvm = lab.columns("lv_name,lv_merging,lv_attr");
    assert!(attributes.iter().all(|row| by_lvm.contains(&(*row).to_owned())), "{by_lvm:?}");
    let kinds = |args: &[&str]| -> Vec<String> {
        let said = lab.verb(&[&["lv", "show", "vg"], args].concat());
        let columns = |row: &str| {
            row.split("  ").map(str::trim).filter(|it| !it.is_empty()).collect::<Vec<_>>().join(";")
        };
        said.lines().map(columns).filter(|row| row.contains(";thin")).collect()
    };
    let (one, two) =
        ("one;vg;Owi---tz--;8M;thin, merge planned;pool;0.00", "two;vg;Vwi---tz--;8M;thin;pool;0.00");
    assert_eq!(kinds(&[])[1..], [one, two], "behind their pool");
    assert!(
        kinds(&["--all"]).contains(&"[snap];vg;Swi---tz-k;8M;thin, merge planned;one;pool;0.00".to_owned())
    );
    let said = lab.verb(&["lv", "show", "vg", "--all", "--json"]);
    let said: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    let merging = said.as_array().expect("volumes").iter().filter(|lv| lv["merging"] == true);
    let merging: Vec<_> = merging.map(|lv| (lv["name"].as_str(), lv["merge"].as_str())).collect();
    assert_eq!(merging, [(Some("one"), Some("planned")), (Some("snap"), Some("planned"))]);
    let said = lab.refused(&["lv", "remove", "vg/snap"]);
    assert!(said.contains("snap: it is being merged into one: name that one"), "{said}");
}

#[test]
fn what_a_pool_cannot_be_is_refused_and_nothing_is_written() {
    let lab = Lab::new(&[("a", 81)]);
    lab.verb(&["vg", "create", "vg", "a"]);
    for (args, expected) in [
        (
            &["--thin-pool", "--size", "40M", "--chunksize", "32K"][..],
            "--chunksize 32 KiB: expected a multiple of 64 KiB",
        ),
        (
            &["--thin-pool", "--size", "40M", "--pool-metadata-size", "1M"],
            "--pool-metadata-size 1 MiB: expected 2 MiB",
        ),
        (&["--thin-pool", "--size", "100M"], "needed"),
        (&["--thin", "pool", "-V", "1G"], "there is no logical volume \"vg/pool\""),
        (&["--thin", "other/pool", "-V", "1G"], "a volume is in the group of its pool, not in other"),
    ] {
        let said = lab.refused(&[&["lv", "create", "vg/new"], args].concat());
        assert!(said.contains(expected), "{args:?}: {said}");
    }
    lab.verb(&[
        "lv",
        "create",
        "vg/pool",
        "--thin-pool",
        "--size",
        "40M",
        "--zero",
        "n",
        "--discards",
        "ignore",
    ]);
    lab.verb(&["lv", "create", "vg/one", "--thin", "pool", "-V", "1G"]);
    let said = lab.refused(&["lv", "remove", "vg/pool"]);
    assert!(said.contains("these volumes are made of it: one"), "{said}");
    let said = lab.refused(&["lv", "snapshot", "vg/one", "--size", "8M", "--name", "snap"]);
    assert!(said.contains("whose snapshots lie in its pool") && said.contains("leave out --size"), "{said}");
    let said = lab.refused(&["lv", "resize", "vg/pool", "--size", "-8M", "--force"]);
    assert!(said.contains("do not become smaller"), "{said}");
    // Metadata of which LVM's text and the pool have different numbers is not touched.
    let map = lab.metadata("pool");
    run(tool("thin_dump").args(["-o", &lab.scratch.at("xml"), &map]));
    let dump = fs::read_to_string(lab.scratch.path("xml")).unwrap();
    let older = lab
        .scratch
        .write("xml", dump.replace("time=\"0\" transaction=\"1\"", "time=\"0\" transaction=\"7\""));
    run(tool("thin_restore").args(["-i", &older, "-o", &map]));
    let mut disk = lab.scratch.read("a");
    let at = PE_START + 10 * EXTENT;
    disk[at..at + EXTENT].copy_from_slice(&lab.scratch.read("map"));
    lab.scratch.write("a", &disk);
    let said = run(&mut lab.scratch.blockwork(["scan", "a"]));
    assert!(said.contains("its superblock has transaction 7, and the group's metadata 1"), "{said}");
}

#[test]
fn an_array_below_a_pool_that_counts_its_new_space_is_left_in_order() {
    let scratch = Scratch::new();
    ["a", "b"].iter().for_each(|name| drop(scratch.sparse(name, 64 << 20)));
    let verb = |args: &str| run(&mut scratch.blockwork(args.split(' ')));
    verb("md create --level 1 --raid-devices 2 --name data --assume-clean a b");
    verb("vg create vg md/data --disk a b");
    verb("lv create vg/pool --thin-pool --size 20M --disk a b");
    verb("lv create vg/one --thin pool -V 20M --disk a b");
    verb("lv resize vg/pool --size +4M --disk a b");
    let said = verb("scan a b");
    assert!(said.contains("[2/2], clean\n"), "{said}");
}

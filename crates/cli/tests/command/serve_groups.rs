//! Volume groups and pools that are changed while their volumes are served: clients go on, new volumes can be had at once, what is in
//! use stays. LVM's tools, `thin_check` and `thin_dump` judge what is on the disks afterwards, also where the server was killed in the
//! middle of a change.

use std::path::Path;

use crate::support::lvm::Lab;
use crate::support::nbd::{fio, holder, load, nbdload, python};
use crate::support::{Background, Server, both, output, run, run_refused, tool, until};
use blockwork_format::virtio::blk::{request, status};
use serde_json::Value;
use vhostload::{Disk, Options, Request};

/// A verb that the running server is asked for.
fn served(lab: &Lab, args: &[&str]) -> String {
    run(&mut lab.scratch.blockwork(args))
}

/// One that it refuses.
fn refused(lab: &Lab, args: &[&str]) -> String {
    run_refused(&mut lab.scratch.blockwork(args))
}

/// What the server says of a volume.
fn shown(lab: &Lab, name: &str) -> Value {
    let said = served(lab, &["lv", "show", "--json", name]);
    let mut all: Value = serde_json::from_str(&said).expect("JSON");
    all[0].take()
}

/// A group with a pool of `mib` and a volume `one` of 64 MiB.
fn pool(mib: u32, disk: u64) -> Lab {
    let lab = Lab::new(&[("a", disk)]);
    lab.verb(&["vg", "create", "vg", "a"]);
    lab.verb(&["lv", "create", "vg/pool", "--thin-pool", "--size", &format!("{mib}M")]);
    lab.verb(&["lv", "create", "vg/one", "--thin", "pool", "-V", "64M"]);
    lab
}

/// As `vgs` prints it, whoever is asked.
#[test]
fn a_group_is_shown_alike_by_its_server_and_from_its_disks() {
    let lab = pool(32, 161);
    lab.verb(&["lv", "create", "vg/plain", "--size", "8M"]);
    let server = lab.scratch.serve(["--disk", "a,logical_block_size=512"]);
    served(&lab, &["lv", "snapshot", "vg/plain", "--size", "4M", "--name", "old"]);
    let place = shown(&lab, "vg/plain")["areas"][0].to_string();
    assert!(place.starts_with("\"a("), "a disk's options are no part of its name: {place}");
    served(&lab, &["vg", "tag", "vg", "--addtag", "db"]);
    let row = "VG  #PV  #LV  #SN  Attr    VSize  VFree  Tags\nvg  1    4    1    wz--n-  160M   ";
    let by_server = served(&lab, &["vg", "show"]);
    assert!(by_server.starts_with(row) && by_server.ends_with("  db\n"), "{by_server}");
    assert_eq!(lab.verb(&["vg", "show", "vg"]), by_server);
    let json = served(&lab, &["vg", "show", "vg", "--json"]);
    assert!(json.contains("\"snapshots\": 1") && json.contains("\"name\": \"pv0\""), "{json}");
    assert_eq!(lab.verb(&["vg", "show", "--json"]), json);
    let said = refused(&lab, &["vg", "show", "other"]);
    assert!(said.contains("no running server serves the volume group other (served are: vg)"), "{said}");
    server.stop_quietly();
    let vgs = "vgs --noheadings --separator ; -o vg_name,pv_count,lv_count,snap_count,vg_attr,vg_tags vg";
    assert_eq!(lab.lvm(&[vgs]).remove(0).trim(), "vg;1;4;1;wz--n-;db");
}

/// A group that was empty when its server began has had nothing to serve, and so nothing that lies below it.
#[test]
fn the_array_below_the_first_volume_of_a_group_is_looked_after_as_any_other() {
    let lab = Lab::new(&[("a", 40), ("b", 40)]);
    let create = "md create --level 1 --raid-devices 2 --name m --assume-clean a b";
    run(&mut lab.scratch.blockwork(create.split(' ')));
    run(&mut lab.scratch.blockwork(["vg", "create", "vg", "md/m", "--disk", "a", "b"]));
    let server = lab.scratch.serve(["--disk", "a", "b"]);
    assert!(refused(&lab, &["md", "fail", "md/m", "b"]).contains("no running server serves the array md/m"));
    served(&lab, &["lv", "create", "vg/x", "--size", "8M"]);
    assert!(served(&lab, &["md", "status"]).contains("md/m : raid1"));
    served(&lab, &["md", "fail", "md/m", "b"]);
    assert!(served(&lab, &["md", "status"]).contains("[2/1] [U_]"));
    assert!(server.stop().status.success());
}

#[test]
fn thin_volumes_and_snapshots_come_and_go_while_a_client_writes() {
    let lab = pool(96, 161);
    let server = lab.scratch.serve(["--disk", "a"]);
    let uri = |name: &str| lab.scratch.uri(name);
    python(&format!("h = connect({:?})\nh.pwrite(b'a' * 1048576, 8 << 20)\nh.flush()\n", uri("vg/one")));
    let writer = Background::start(&mut fio(
        &lab.scratch,
        &uri("vg/one"),
        &[
            "--rw=randwrite",
            "--bs=4k",
            "--size=8m",
            "--verify=crc32c",
            "--iodepth=8",
            "--loops=3",
            "--fsync=64",
        ],
    ));
    assert_eq!(
        served(&lab, &["lv", "snapshot", "vg/one", "--name", "snap"]),
        "vg/snap: a snapshot of one, in its pool\n"
    );
    served(&lab, &["lv", "create", "vg/two", "--thin", "pool", "-V", "1G", "--addtag", "t"]);
    let said = refused(&lab, &["lv", "resize", "vg/two", "--size", "16P"]);
    assert!(said.contains("the size 16 PiB: expected at most 4294967295 extents (15.99 PiB)"), "{said}");
    let script = format!(
        "one, snap, two = [connect(uri) for uri in ({:?}, {:?}, {:?})]\n\
         one.pwrite(b'b' * 1048576, 8 << 20)\none.flush()\n\
         print(snap.pread(1048576, 8 << 20) == b'a' * 1048576, snap.get_size() == 64 << 20)\n\
         two.pwrite(b'c' * 65536, (1 << 30) - 65536)\ntwo.flush()\n\
         print(two.pread(1, (1 << 30) - 1), two.pread(1, 0))\n",
        uri("vg/one"),
        uri("vg/snap"),
        uri("vg/two")
    );
    assert_eq!(python(&script), "True True\nbytearray(b'c') bytearray(b'\\x00')\n");
    let two = shown(&lab, "vg/two");
    assert!(
        (two["type"] == "thin") && (two["pool"] == "pool") && two["data_percent"].as_f64() > Some(0.0),
        "{two}"
    );
    assert!(shown(&lab, "vg/pool")["data_percent"].as_f64() > Some(1.0));

    // In use, a snapshot of a snapshot, another size, another name.
    let client = holder(&lab.scratch, "vg/two");
    let said = refused(&lab, &["lv", "remove", "vg/two"]);
    assert!(said.contains("vg/two is in use: 1 NBD client has it open"), "{said}");
    drop(client);
    served(&lab, &["lv", "snapshot", "vg/snap", "--name", "deep"]);
    assert_eq!(served(&lab, &["lv", "resize", "vg/two", "--size", "2G"]), "vg/two: 2G, before it was 1G\n");
    assert_eq!(
        served(&lab, &["lv", "resize", "vg/two", "--extents", "+1"]),
        "vg/two: 2G (513 extents), before it was 2G (512)\n"
    );
    served(&lab, &["lv", "rename", "vg/two", "vg/three"]);
    let shown = served(&lab, &["export", "show"]);
    assert!(shown.contains(&uri("vg/three")) && !shown.contains("vg/two"), "{shown}");
    let script =
        format!("h = connect({:?})\nprint(h.get_size() >> 30, h.pread(1, (1 << 30) - 1))\n", uri("vg/three"));
    assert_eq!(python(&script), "2 bytearray(b'c')\n");
    let said = refused(&lab, &["lv", "resize", "vg/three", "--size", "1G", "--force"]);
    assert!(said.contains("stop serving it first"), "{said}");
    until("the client of the removed volume is gone", || {
        output(&mut lab.scratch.blockwork(["lv", "remove", "vg/three", "vg/deep"])).status.success()
    });
    let list = run(tool("nbdinfo").args(["--list", &uri("")]));
    assert!(list.contains("vg/snap") && !list.contains("vg/three") && !list.contains("vg/deep"), "{list}");
    writer.succeed();
    server.stop_quietly();

    lab.expect_sound();
    assert_eq!(
        lab.columns("lv_name,origin,thin_id,transaction_id"),
        ["[lvol0_pmspare];;;", "one;;1;0", "pool;;;5", "[pool_tdata];;;", "[pool_tmeta];;;", "snap;one;2;1"]
    );
    let dump = lab.dumped("pool");
    assert!(
        dump.contains("transaction=\"5\"") && dump.contains("dev_id=\"2\"") && !dump.contains("dev_id=\"3\""),
        "{dump}"
    );
    // The next server finds the same.
    let server = lab.scratch.serve(["--disk", "a"]);
    let script = format!("h = connect({:?})\nprint(h.pread(2, 8 << 20))\n", uri("vg/snap"));
    assert_eq!(python(&script), "bytearray(b'aa')\n");
    server.stop_quietly();
}

#[test]
fn a_full_pool_that_grows_lets_writes_that_wait_go_on() {
    let lab = pool(16, 161);
    let server = lab.scratch.serve(["--disk", "a"]);
    let uri = lab.scratch.uri("vg/one");
    let mut writer = Background::start(&mut fio(
        &lab.scratch,
        &uri,
        &["--rw=write", "--bs=256k", "--size=40m", "--verify=crc32c", "--iodepth=4", "--end_fsync=1"],
    ));
    until("the pool is full", || {
        let pool = shown(&lab, "vg/pool");
        pool["status"].as_str().is_some_and(|status| status.contains("out_of_data_space"))
    });
    assert!(writer.is_running());
    assert_eq!(
        served(&lab, &["lv", "resize", "vg/pool", "--size", "+32M"]),
        "vg/pool: 48M, before it was 16M\n"
    );
    served(&lab, &["lv", "resize", "vg/pool", "--pool-metadata-size", "+4M"]);
    writer.succeed();
    let pool = shown(&lab, "vg/pool");
    assert!(pool["status"].as_str().is_some_and(|status| status.contains(" rw ")), "{pool}");
    let ended = server.stop();
    assert!(ended.status.success(), "{}", ended.stderr);
    lab.expect_sound();
    let dump = lab.dumped("pool");
    assert!(dump.contains("nr_data_blocks=\"768\""), "{dump}");
    assert!(lab.columns("lv_name,lv_size").contains(&"pool;48.00".to_owned()));
}

#[test]
fn a_pool_that_fills_up_extends_itself_and_nothing_is_lost() {
    let lab = pool(16, 161);
    let auto = ["thin-pool:thin_pool_autoextend_threshold=70", "thin-pool:thin_pool_autoextend_percent=50"];
    let server = lab.scratch.serve(["--disk", "a", "--set", auto[0], "--set", auto[1]]);
    run(&mut fio(
        &lab.scratch,
        &lab.scratch.uri("vg/one"),
        &["--rw=randwrite", "--bs=64k", "--size=56m", "--verify=crc32c", "--iodepth=8", "--end_fsync=1"],
    ));
    until("the pool has come below its mark", || {
        let pool = shown(&lab, "vg/pool");
        pool["bytes"].as_u64() >= Some(80 << 20) && pool["data_percent"].as_f64() < Some(70.1)
    });
    // For a moment it may have been full.
    let ended = server.stop();
    assert!(ended.status.success(), "{}", ended.stderr);
    lab.expect_sound();
    let dump = lab.dumped("pool");
    assert!(dump.contains("mapped_blocks=\"896\""), "{dump}");

    // Where the group has no room, that is told, and the pool is as it was.
    let server = lab.scratch.serve(["--disk", "a", "--set", auto[0]]);
    served(&lab, &["lv", "create", "vg/rest", "--extents", "100%FREE"]);
    served(&lab, &["lv", "create", "vg/more", "--thin", "pool", "-V", "64M"]);
    let script = "h.pwrite(b'm' * (8 << 20), 0)\nh.flush()\n";
    python(&format!("h = connect({:?})\n{script}", lab.scratch.uri("vg/more")));
    until("that there is no room is told", || server.said().contains("it cannot be extended"));
    let ended = server.stop();
    assert!(ended.status.success(), "{}", ended.stderr);
    lab.expect_sound();
    lab.dumped("pool");
}

#[test]
fn the_map_of_a_pool_that_fills_up_is_extended_too() {
    const GIB: u64 = 1 << 30;
    let lab = Lab::new(&[("a", 24 << 10)]);
    lab.verb(&["vg", "create", "vg", "a"]);
    lab.verb(&["lv", "create", "vg/pool", "--thin-pool", "--size", "20G", "--pool-metadata-size", "4M"]);
    lab.verb(&["lv", "create", "vg/one", "--thin", "pool", "-V", "8G"]);
    let set = ["--set", "vg/pool:thin_pool_autoextend_threshold=50"];
    let server = lab.scratch.serve(["--disk", "a"].iter().chain(&set));
    let map = || shown(&lab, "vg/pool")["metadata_percent"].as_f64().expect("a share");
    assert!(map() < 30.0);
    // Blocks of their own for zeros, in an order that leaves half of each leaf empty.
    let script = format!(
        "h = connect({:?})\nfor part in reversed(range(62)):\n    h.zero({}, part * {}, nbd.CMD_FLAG_NO_HOLE)\nh.flush()\n",
        lab.scratch.uri("vg/one"),
        GIB / 8,
        GIB / 8
    );
    python(&script);
    until("the map is larger", || map() < 50.0);
    assert!(lab.columns("lv_name,lv_size").contains(&"[pool_tmeta];8.00".to_owned()));
    server.stop_quietly();
    lab.expect_sound();
    let dump = lab.dumped("pool");
    assert!(dump.contains("mapped_blocks=\"126976\""), "{}", &dump[..dump.len().min(400)]);
}

/// Bytes that are made zeros at once.
const STEP: u64 = 128 << 20;

/// Writes zeros to vg/one, a volume of 8 GiB, until the map of its pool is full.
fn fill_map(lab: &Lab) {
    // Blocks of their own, in an order that leaves half of each leaf of the map empty.
    let fill = format!(
        "h = connect({:?})\n\
         try:\n    for part in reversed(range(64)):\n        h.zero({STEP}, part * {STEP}, nbd.CMD_FLAG_NO_HOLE)\n\
         except nbd.Error as error:\n    print(error.errno)\n",
        lab.scratch.uri("vg/one")
    );
    assert_eq!(python(&fill), "EIO\n");
}

#[test]
fn a_pool_that_takes_no_changes_keeps_nothing_else_from_being_changed_and_takes_them_when_it_has_room() {
    let lab = Lab::new(&[("a", 9 << 10)]);
    lab.verb(&["vg", "create", "vg", "a", "-s", "1M"]);
    lab.verb(&["lv", "create", "vg/root", "--size", "16M"]);
    lab.verb(&["lv", "create", "vg/pool", "--thin-pool", "--size", "8G", "--pool-metadata-size", "2M"]);
    lab.verb(&["lv", "create", "vg/one", "--thin", "pool", "-V", "8G"]);
    lab.verb(&["lv", "create", "vg/two", "--thin", "pool", "-V", "8M"]);
    let server = lab.scratch.serve(["--disk", "a"]);
    served(&lab, &["lv", "snapshot", "vg/root", "--size", "17M", "--name", "old"]);
    fill_map(&lab);
    let status = || shown(&lab, "vg/pool")["status"].as_str().expect("a status").to_owned();
    assert!(status().contains(" ro "), "{}", status());

    // Before a text says that they have gone.
    let before = lab.columns("lv_name,origin,thin_id,transaction_id");
    let said = refused(&lab, &["lv", "remove", "vg/two", "vg/old"]);
    assert!(said.contains("the pool pool: the pool is read-only"), "{said}");
    assert_eq!(lab.columns("lv_name,origin,thin_id,transaction_id"), before);
    served(&lab, &["lv", "create", "vg/more", "--size", "16M"]);
    served(&lab, &["lv", "remove", "vg/more"]);
    served(&lab, &["lv", "resize", "vg/pool", "--pool-metadata-size", "+2M"]);
    assert!(status().contains(" rw "), "{}", status());
    served(&lab, &["lv", "remove", "vg/two", "vg/old"]);
    served(&lab, &["lv", "create", "vg/new", "--extents", "100%FREE"]);
    let script = format!(
        "new, root = connect({:?}), connect({:?})\n\
         end = new.get_size()\n\
         for at in range(0, end, 1 << 20):\n    new.pwrite(b'n' * (1 << 20), at)\nnew.flush()\n\
         root.pwrite(b'r' * (16 << 20), 0)\nroot.flush()\n\
         print(all(new.pread(1 << 20, at) == b'n' * (1 << 20) for at in range(0, end, 1 << 20)))\n",
        lab.scratch.uri("vg/new"),
        lab.scratch.uri("vg/root")
    );
    assert_eq!(python(&script), "True\n");
    let ended = server.stop();
    assert!(ended.status.success(), "{}", ended.stderr);
    lab.expect_sound();
    let dump = lab.dumped("pool");
    assert!(
        dump.contains("dev_id=\"1\"") && !dump.contains("dev_id=\"2\""),
        "{}",
        &dump[..dump.len().min(400)]
    );
}

#[test]
fn a_thin_volume_that_its_pool_refuses_leaves_nothing_behind_and_can_be_made_later() {
    let lab = Lab::new(&[("a", 9 << 10)]);
    lab.verb(&["vg", "create", "vg", "a", "-s", "1M"]);
    lab.verb(&["lv", "create", "vg/pool", "--thin-pool", "--size", "8G", "--pool-metadata-size", "2M"]);
    lab.verb(&["lv", "create", "vg/one", "--thin", "pool", "-V", "8G"]);
    let server = lab.scratch.serve(["--disk", "a"]);
    fill_map(&lab);
    let before = lab.columns("lv_name,origin,thin_id,transaction_id");
    let offered = || run(tool("nbdinfo").args(["--list", &lab.scratch.uri("")]));
    let told = || served(&lab, &["lv", "show", "vg"]);
    let seen_before = (offered(), told());
    for verb in
        [&["create", "vg/two", "--thin", "pool", "-V", "8M"][..], &["snapshot", "vg/one", "--name", "two"]]
    {
        let said = refused(&lab, &[&["lv"], verb].concat());
        assert!(said.contains("the pool pool: the pool is read-only"), "{said}");
        assert_eq!(lab.columns("lv_name,origin,thin_id,transaction_id"), before);
        // Neither clients nor people see anything of it.
        assert_eq!((offered(), told()), seen_before);
        lab.expect_sound();
    }
    served(&lab, &["lv", "resize", "vg/pool", "--pool-metadata-size", "+2M"]);
    served(&lab, &["lv", "create", "vg/two", "--thin", "pool", "-V", "8M"]);
    served(&lab, &["lv", "snapshot", "vg/one", "--name", "three"]);
    python(&format!("h = connect({:?})\nassert h.pread(512, 0) == bytes(512)\n", lab.scratch.uri("vg/two")));
    let ended = server.stop();
    assert!(ended.status.success(), "{}", ended.stderr);
    lab.expect_sound();
    // A line for each segment: the map is in two pieces.
    let mut columns = lab.columns("lv_name,origin,thin_id,transaction_id");
    columns.dedup();
    assert_eq!(
        columns,
        [
            "[lvol0_pmspare];;;",
            "one;;1;0",
            "pool;;;3",
            "[pool_tdata];;;",
            "[pool_tmeta];;;",
            "three;one;3;2",
            "two;;2;1"
        ]
    );
    let dump = lab.dumped("pool");
    assert!(
        dump.contains("transaction=\"3\"") && dump.matches("dev_id=").count() == 3,
        "{}",
        &dump[..dump.len().min(400)]
    );
}

#[test]
fn a_guest_is_told_that_its_volume_has_grown() {
    let lab = pool(96, 161);
    let socket = lab.scratch.at("socket");
    let serve = ["serve", "--vhost-user", &socket, "--disk", "a", "vg/one"];
    let server = Server::start(&mut lab.scratch.blockwork(serve));
    let mut disk = Disk::new(Path::new(&socket), Options::default()).expect("a disk");
    assert_eq!(disk.config().expect("its configuration").capacity, (64 << 20) / 512);
    served(&lab, &["lv", "resize", "vg/one", "--size", "128M"]);
    disk.wait_for_config_change().expect("word of it");
    assert_eq!(disk.config().expect("its configuration").capacity, (128 << 20) / 512);
    let last = Request { kind: request::OUT, sector: (128 << 20) / 512 - 8, len: 4096 };
    assert_eq!(disk.run(0, last).expect("an answer").status, status::OK);
    drop(disk);
    server.stop_quietly();
}

#[test]
fn plain_volumes_come_grow_and_go_while_others_are_served() {
    let lab = Lab::new(&[("a", 81), ("b", 81)]);
    lab.verb(&["vg", "create", "vg", "a", "b"]);
    lab.verb(&["lv", "create", "vg/root", "--size", "8M"]);
    lab.scratch.sparse("c", 81 << 20);
    let server = lab.scratch.serve(["--disk", "a", "b"]);
    let uri = |name: &str| lab.scratch.uri(name);
    python(&format!(
        "h = connect({:?})\nh.pwrite(b'r' * 4096, (8 << 20) - 4096)\nh.flush()\n",
        uri("vg/root")
    ));
    let holder = holder(&lab.scratch, "vg/root");
    served(&lab, &["lv", "create", "vg/striped", "--size", "16M", "--type", "striped", "--stripes", "2"]);
    served(&lab, &["lv", "create", "vg/mirror", "--size", "8M", "--type", "raid1"]);
    served(&lab, &["lv", "resize", "vg/root", "--size", "+8M"]);
    served(&lab, &["lv", "tag", "vg/root", "--addtag", "db"]);
    served(&lab, &["vg", "tag", "vg", "--addtag", "g"]);
    let script = format!(
        "root, striped, mirror = [connect(uri) for uri in ({:?}, {:?}, {:?})]\n\
         print(root.get_size() >> 20, root.pread(1, (8 << 20) - 1), root.pread(1, 8 << 20))\n\
         for h in (root, striped, mirror):\n    h.pwrite(b'x' * 65536, h.get_size() - 65536)\n    h.flush()\n\
         print([bytes(h.pread(1, h.get_size() - 1)) for h in (root, striped, mirror)])\n",
        uri("vg/root"),
        uri("vg/striped"),
        uri("vg/mirror")
    );
    assert_eq!(python(&script), "16 bytearray(b'r') bytearray(b'\\x00')\n[b'x', b'x', b'x']\n");
    for (args, expected) in [
        (&["lv", "remove", "vg/root"][..], "vg/root is in use: 1 NBD client has it open"),
        (&["lv", "resize", "vg/root", "--size", "8M", "--force"], "stop serving it first"),
        (&["lv", "resize", "vg/root", "--size", "8M"], "stop serving it first"),
        (&["lv", "create", "vg/root", "--size", "4M"], "exists already"),
        (
            &["vg", "extend", "vg", "c"],
            "the volume group vg is served, and its disks and its name change only",
        ),
        (
            &["vg", "extend", "vg", "c", "--disk", "a", "b"],
            "stop that server, then name all of the group's disks",
        ),
        (&["vg", "reduce", "vg", "b"], "the volume group vg is served"),
        (&["vg", "rename", "vg", "new", "--disk", "a", "b"], "the volume group vg is served"),
        (
            &["lv", "create", "other/x", "--size", "4M"],
            "no running server serves the volume group other; served are: vg",
        ),
        (
            &["lv", "create", "vg/x", "--size", "4M", "--disk", "a", "b"],
            "without --disk, this command asks that server",
        ),
    ] {
        let said = refused(&lab, args);
        assert!(said.contains(expected), "{args:?}: {said}");
    }
    served(&lab, &["lv", "rename", "vg/striped", "vg/wide"]);
    until("the client is let go", || {
        output(&mut lab.scratch.blockwork(["lv", "remove", "vg/wide"])).status.success()
    });
    drop(holder);
    server.stop_quietly();
    lab.expect_sound();
    let names = lab.columns("lv_name,lv_size,lv_tags");
    assert!(
        names.contains(&"root;16.00;db".to_owned()) && names.contains(&"mirror;8.00;".to_owned()),
        "{names:?}"
    );
    assert!(!names.iter().any(|line| line.starts_with("wide") || line.starts_with("striped")), "{names:?}");
}

#[test]
fn a_server_that_was_told_what_to_serve_serves_no_more_unless_it_is_told_to() {
    let lab = pool(16, 81);
    lab.verb(&["lv", "create", "vg/two", "--size", "4M"]);
    for args in [&["--disk", "a", "vg"][..], &["--disk", "a", "--read-only", "vg"]] {
        let said = lab.scratch.refused(args);
        assert!(said.contains("vg: it is a volume group: name volumes of it: vg/one, vg/two"), "{said}");
    }
    lab.verb(&["lv", "remove", "vg/two"]);
    let server = lab.scratch.serve(["--disk", "a", "vg/one"]);
    let said = |args: &[&str]| both(&output(&mut lab.scratch.blockwork(args)));
    let hidden = said(&["lv", "snapshot", "vg/one", "--name", "hidden"]);
    assert!(hidden.contains("vg/hidden: it is not served") && hidden.contains("with --serve"), "{hidden}");
    let seen = said(&["lv", "snapshot", "vg/one", "--name", "seen", "--serve"]);
    assert!(!seen.contains("not served"), "{seen}");
    let list = run(tool("nbdinfo").args(["--list", &lab.scratch.uri("")]));
    assert!(list.contains("vg/seen") && !list.contains("vg/hidden"), "{list}");
    served(&lab, &["lv", "remove", "vg/hidden"]);
    // A pool that goes with its volumes writes nothing to where it lay.
    python(&format!("h = connect({:?})\nh.pwrite(b's' * 65536, 0)\n", lab.scratch.uri("vg/seen")));
    until("the pool and its volumes are gone", || {
        let all = ["lv", "remove", "vg/seen", "vg/one", "vg/pool"];
        output(&mut lab.scratch.blockwork(all)).status.success()
    });
    served(&lab, &["lv", "create", "vg/plain", "--extents", "100%FREE", "--serve"]);
    let uri = lab.scratch.uri("vg/plain");
    run(&mut fio(
        &lab.scratch,
        &uri,
        &["--rw=write", "--bs=256k", "--size=76m", "--verify=crc32c", "--iodepth=4"],
    ));
    server.stop_quietly();
    lab.expect_sound();
    assert_eq!(lab.columns("lv_name,lv_size"), ["plain;80.00"]);
}

#[test]
fn a_pool_of_a_table_is_told_messages_while_it_is_served() {
    let lab = pool(16, 81);
    lab.verb(&["lv", "create", "vg/map", "--size", "4M"]);
    lab.verb(&["lv", "create", "vg/data", "--size", "16M"]);
    let lines = "pool: 0 32768 thin-pool vg/map vg/data 128 0\none: 0 16384 thin dm/pool 1\n";
    let table = lab.scratch.write("thin.table", lines);
    let make = |words: &str| {
        let args = ["message", "--table", &table, "--disk", "a", "--", "dm/pool", "0", words];
        run(&mut lab.scratch.blockwork(args))
    };
    make("create_thin 1");
    let server = lab.scratch.serve(["--disk", "a", "--table", &table]);
    python(&format!("h = connect({:?})\nh.pwrite(b'a' * 65536, 0)\nh.flush()\n", lab.scratch.uri("dm/one")));
    let told = |words: &str| served(&lab, &["message", "dm/pool", "0", words]);
    told("create_snap 2 1");
    told("create_thin 3");
    told("delete 3");
    told("set_transaction_id 0 7");
    told("reserve_metadata_snap");
    told("release_metadata_snap");
    for (words, expected) in [
        ("delete 1", "dm/pool: thin device 1 is in use"),
        ("create_thin 2", "the pool has a thin device 2 already"),
        ("frob", "is no message of a thin pool"),
    ] {
        let said = refused(&lab, &["message", "dm/pool", "0", words]);
        assert!(said.contains(expected), "{words}: {said}");
    }
    let said = refused(&lab, &["message", "dm/other", "0", "create_thin 2"]);
    assert!(said.contains("no running server serves the thin pool dm/other; served are: dm/pool"), "{said}");
    server.stop_quietly();
    make("create_snap 4 2");
    lab.expect_sound();
}

/// Promises in nbdload's log so far.
fn promises(log: &Path) -> usize {
    std::fs::read_to_string(log).unwrap_or_default().lines().skip(1).count()
}

/// The number of the group's last change, by the server.
fn seqno(lab: &Lab) -> u64 {
    let said = served(lab, &["lv", "tag", "vg/one", "--addtag", "t", "--json"]);
    serde_json::from_str::<Value>(&said).expect("JSON")["seqno"].as_u64().expect("a number")
}

#[test]
fn a_server_that_is_killed_in_the_middle_of_changes_leaves_what_everybody_can_go_on_with() {
    let lab = pool(64, 241);
    lab.verb(&["lv", "create", "vg/small", "--thin", "pool", "-V", "8M"]);
    for round in 1..=3_usize {
        let server = lab.scratch.serve(["--disk", "a"]);
        let log = lab.scratch.path(&format!("promises{round}"));
        let mut client = nbdload();
        client
            .arg(format!("unix:{}", lab.scratch.at("socket")))
            .args(["--export", "vg/small", "--verify", "--log"]);
        client.arg(&log).args(["--depth", "8", "--seconds", "100", "--seed", &round.to_string()]);
        let client = Background::start(client.args(["--rw", "randrw", "--bs", "4k", "--flush-every", "32"]));
        until("the server has promised something", || promises(&log) > 20 * round);
        let before = seqno(&lab);
        // It dies at another place of the sequence of changes in each round.
        let loop_of_changes = format!(
            "for n in $(seq 40); do {0} lv snapshot vg/small --name s$n || exit; [ $((n % 4)) = 0 ] || \
             {0} lv remove vg/s$n || exit; {0} lv resize vg/pool --extents +1 || exit; done",
            env!("CARGO_BIN_EXE_blockwork")
        );
        let mut shell = tool("sh");
        shell.args(["-c", &loop_of_changes]).env("BLOCKWORK_RUN_DIR", lab.scratch.path("run"));
        let changes = Background::start(&mut shell);
        until("much has changed", || promises(&log) > 60 * round && seqno(&lab) > before + 7 * round as u64);
        server.kill();
        assert_eq!(client.finish().0, Some(3), "the client saw its server die");
        changes.finish();
        // What was to become the next text may stand in its slot still, as LVM leaves it: the next change takes that.
        assert_eq!(lab.lvm(&["vgck vg"]), [""]);
        lab.dumped("pool");
        // Whoever opens the group next makes complete what was cut short.
        lab.verb(&["lv", "create", "vg/after", "--thin", "pool", "-V", "4M"]);
        lab.dumped("pool");
        let server = lab.scratch.serve(["--disk", "a"]);
        let log = log.to_str().unwrap();
        let report =
            load(&lab.scratch.at("socket"), &["--export", "vg/small", "--verify-only", "--log", log]);
        assert_eq!((&report["wrong_blocks"], &report["errors"]), (&0.into(), &0.into()), "{report}");
        let list = run(tool("nbdinfo").args(["--list", &lab.scratch.uri("")]));
        let mut all = vec!["lv".to_owned(), "remove".to_owned()];
        let names = list.lines().filter_map(|line| line.strip_prefix("export=\"")?.split('"').next());
        all.extend(names.filter(|name| !["vg/one", "vg/small"].contains(name)).map(str::to_owned));
        run(&mut lab.scratch.blockwork(all));
        server.stop_quietly();
        let dump = lab.dumped("pool");
        assert_eq!(dump.matches("dev_id=").count(), 2, "{dump}");
    }
}

/// The text has a volume that its pool has not heard of, as LVM or a server leaves it that is killed between the two.
#[test]
fn what_a_pool_was_not_told_before_its_server_was_killed_is_made_when_the_group_is_served() {
    let lab = Lab::new(&[("a", 97)]);
    lab.verb(&["vg", "create", "vg", "a", "-s", "1M"]);
    lab.verb(&["lv", "create", "vg/pool", "--thin-pool", "--size", "64M"]);
    lab.verb(&["lv", "create", "vg/root", "--thin", "pool", "-V", "16M"]);
    let volume = "\t\tnew {\n\t\t\tid = \"7Q3Tdr-1111-2222-3333-4444-5555-abcdef\"\n\t\t\tstatus = [\"READ\", \"WRITE\", \"VISIBLE\"]\n\
                  \t\t\tsegment_count = 1\n\n\t\t\tsegment1 {\n\t\t\t\tstart_extent = 0\n\t\t\t\textent_count = 8\n\n\
                  \t\t\t\ttype = \"thin\"\n\t\t\t\tthin_pool = \"pool\"\n\t\t\t\ttransaction_id = 1\n\t\t\t\tdevice_id = 2\n\t\t\t}\n\t\t}\n\n";
    lab.edit("\t\troot {", &format!("{volume}\t\troot {{"));
    lab.edit(
        "transaction_id = 1\n\t\t\t\tchunk_size",
        "transaction_id = 2\n\t\t\t\tmessage1 {\n\t\t\t\t\tcreate = \"new\"\n\t\t\t\t}\n\t\t\t\tchunk_size",
    );
    // Nothing is written by one that only reads.
    let server = lab.scratch.serve(["--disk", "a", "--read-only"]);
    assert!(server.stop().stderr.contains("its pool pool knows no device 2: where it was just made"));
    assert!(!lab.dumped("pool").contains("dev_id=\"2\""));
    let server = lab.scratch.serve(["--disk", "a"]);
    let told = lab.scratch.ask("/v1/status")["volumes"].as_array().unwrap().clone();
    assert_eq!(told.iter().filter(|volume| volume["name"] == "vg/new").count(), 1, "{told:?}");
    run(&mut fio(&lab.scratch, &lab.scratch.uri("vg/new"), &["--rw=write", "--bs=64k", "--size=8M"]));
    server.stop();
    assert!(lab.dumped("pool").contains("dev_id=\"2\""));
    lab.expect_sound();
    assert!(lab.columns("lv_name,transaction_id,segtype").iter().any(|row| row == "pool;2;thin-pool"));
    let server = lab.scratch.serve(["--disk", "a"]);
    run(tool("nbdinfo").arg(lab.scratch.uri("vg/new")));
    server.stop_quietly();
}

#[test]
fn volumes_come_and_go_without_end_and_each_begins_with_figures_of_its_own() {
    let disks = ["a", "b", "c", "d", "e", "f", "g", "h"];
    let lab = Lab::new(&disks.map(|disk| (disk, 40)));
    lab.verb(&[&["vg", "create", "vg"], &disks[..]].concat());
    lab.verb(&["lv", "create", "vg/stays", "--size", "4M"]);
    let server = lab.scratch.serve([&["--disk"], &disks[..]].concat());
    let nodes = || lab.scratch.ask("/v1/stats")["nodes"].as_array().expect("a list").clone();
    let of = |volume: &str| -> Vec<Value> {
        let is_its = |name: &str| name == volume || name.starts_with(&format!("{volume}_"));
        nodes().into_iter().filter(|node| is_its(node["name"].as_str().expect("text"))).collect()
    };
    let make = |volume: &str| {
        // Sixteen legs with their metadata, and the array. What is said there is why it is not served.
        let args =
            ["lv", "create", volume, "--type", "raid10", "--stripes", "4", "--size", "16M", "--nosync"];
        let made = output(&mut lab.scratch.blockwork(args));
        assert!(made.status.success() && made.stderr.is_empty(), "{}", String::from_utf8_lossy(&made.stderr));
    };
    let write = |volume: &str, times: u32| {
        let uri = lab.scratch.uri(volume);
        python(&format!(
            "h = connect({uri:?})\nfor i in range({times}): h.pwrite(b'x' * 65536, i % 64 << 16)\n"
        ));
    };
    for job in 0..64 {
        let volume = format!("vg/job{job}");
        make(&volume);
        if job < 6 {
            write(&volume, 500);
        }
        if job == 0 {
            assert_eq!(of("vg/job0").len(), 17);
        }
        // Until the server has seen the client go.
        until("the job's volume can be removed", || {
            output(&mut lab.scratch.blockwork(["lv", "remove", &volume])).status.success()
        });
    }
    assert!(nodes().len() >= 1024, "{}", nodes().len());
    assert!(of("vg/job0").is_empty(), "its numbers are others' now");
    make("vg/last");
    write("vg/last", 3);
    let (own, writes) =
        (of("vg/last"), |node: &Value| node["counters"]["writes"].as_u64().expect("a number"));
    assert_eq!(own.len(), 17, "{own:?}");
    let array = own.iter().find(|node| node["kind"] == "raid").expect("it is an array");
    assert_eq!(writes(array), 3, "{array}");
    assert!(own.iter().all(|node| writes(node) < 100), "{own:?}");
    server.stop_quietly();
    lab.expect_sound();
}

#[test]
fn a_group_without_volumes_is_served_and_gets_them() {
    let lab = Lab::new(&[("a", 161)]);
    lab.verb(&["vg", "create", "vg", "a"]);
    let none = "the disks hold no volume that can be served";
    let said = lab.scratch.refused(["--disk", "a", "--read-only"]);
    assert!(said.contains(none), "{said}");
    let file = lab.scratch.write("file", "");
    let said = lab.scratch.refused(["--disk", "a", "--fuse", &file]);
    assert!(said.contains(&format!("{file}: there is no volume that it could be")), "{said}");
    let folder = lab.scratch.path("folder");
    std::fs::create_dir(&folder).expect("a new folder");
    let server = lab.scratch.serve(["--disk", "a", "--fuse", folder.to_str().expect("UTF-8")]);
    let list = || run(tool("nbdinfo").args(["--list", "--json", &lab.scratch.uri("")]));
    assert!(!list().contains("vg/"), "{}", list());
    served(&lab, &["lv", "create", "vg/pool", "--thin-pool", "--size", "64M"]);
    assert!(!list().contains("vg/"), "a pool is nothing that can be opened: {}", list());
    let said = refused(&lab, &["lv", "remove", "vg/one"]);
    assert!(said.contains("there is no logical volume \"vg/one\"; there are: pool"), "{said}");
    served(&lab, &["lv", "create", "vg/one", "--thin", "pool", "-V", "16M"]);
    assert!(list().contains("vg/one"), "{}", list());
    // The first is what is had without a name.
    let uri = lab.scratch.uri("");
    python(&format!("h = connect({uri:?})\nh.pwrite(b'1' * 65536, 1 << 20)\nh.flush()\n"));
    let bytes = std::fs::read(folder.join("vg/one")).expect("it is a file there");
    assert!(bytes.len() == 16 << 20 && bytes[1 << 20..][..65536].iter().all(|byte| *byte == b'1'));
    served(&lab, &["lv", "create", "vg/two", "--size", "8M"]);
    until("nobody has them open", || {
        output(&mut lab.scratch.blockwork(["lv", "remove", "vg/one", "vg/two", "vg/pool"])).status.success()
    });
    assert!(!list().contains("vg/") && std::fs::read_dir(&folder).expect("it is there").next().is_none());
    let ended = server.stop();
    assert!(ended.status.success() && ended.stderr.contains("vg: no volume yet"), "{}", ended.stderr);
    lab.expect_sound();
}

/// Bits that are set in the bitmap of the one array on a disk, of `chunks` chunks.
fn marked(lab: &Lab, disk: &str, chunks: u32) -> u32 {
    let bytes = std::fs::read(lab.scratch.path(disk)).expect("the disk");
    let mut pages = bytes.as_chunks::<4096>().0.iter();
    let bitmap = pages.find(|page| page.starts_with(b"bitm")).expect("there is one");
    // Behind the superblock of 256 bytes; those of no chunk are set.
    let bits = u32::from_le_bytes(*bitmap[256..].first_chunk().expect("a page is longer"));
    (bits & ((1 << chunks) - 1)).count_ones()
}

/// An array clears its bitmap, and records that it is clean, some time after the last write: where it lay, the next volume may be by then.
#[test]
fn an_array_that_is_removed_has_nothing_left_to_write() {
    let lab = Lab::new(&[("a", 37), ("b", 37)]);
    lab.verb(&["vg", "create", "vg", "a", "b"]);
    lab.verb(&["lv", "create", "vg/stays", "--size", "4M"]);
    let server = lab.scratch.serve(["--disk", "a", "b"]);
    served(&lab, &["lv", "create", "vg/mirror", "--type", "raid1", "--size", "28M", "--nosync"]);
    let uri = lab.scratch.uri("vg/mirror");
    python(&format!("h = connect({uri:?})\nh.pwrite(b'm' * 1048576, 4 << 20)\nh.flush()\nh.shutdown()\n"));
    // Of 2 MiB each.
    assert_eq!(marked(&lab, "a", 14), 1);
    until("the mirror can be removed", || {
        output(&mut lab.scratch.blockwork(["lv", "remove", "vg/mirror"])).status.success()
    });
    assert_eq!(["a", "b"].map(|disk| marked(&lab, disk, 14)), [0, 0]);
    server.stop_quietly();
    lab.expect_sound();
}

/// A change of a group is written through the array below, which is as active then as if a volume had been written to.
#[test]
fn a_server_that_ends_right_after_a_change_leaves_the_array_below_in_order() {
    let lab = Lab::new(&[("a", 49), ("b", 49), ("c", 17)]);
    let offline = |args: &str| run(&mut lab.scratch.blockwork(args.split(' ')));
    offline("md create --level 1 --raid-devices 2 --name data --assume-clean a b");
    offline("vg create vg md/data --disk a b");
    offline("vg create other c");
    offline("lv create other/one --size 4M --disk c");
    let server = lab.scratch.serve(["--disk", "a", "b", "c"]);
    served(&lab, &["vg", "tag", "vg", "--addtag", "t"]);
    assert!(server.stop().status.success());
    let said = offline("scan a b c");
    assert!(said.contains("[2/2], clean\n"), "{said}");
}

/// What cannot be changed has not been left half-changed by anybody.
#[test]
fn a_group_that_cannot_be_changed_is_told_why_and_not_that_a_change_was_cut_short() {
    let lab = Lab::new(&[("a", 40), ("b", 40)]);
    lab.verb(&["vg", "create", "vg", "a", "b"]);
    lab.verb(&["lv", "create", "vg/one", "--size", "8M"]);
    let server = lab.scratch.serve(["--disk", "a"]);
    let said = refused(&lab, &["lv", "create", "vg/two", "--size", "8M"]);
    assert!(said.contains("pv1") && !said.contains("cut short"), "{said}");
    assert!(server.stop().status.success());
}

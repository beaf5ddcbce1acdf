//! RAID volumes, and pools on such, that grow while they are served: clients go on, hear of the new size, and what is new is resynced. (What
//! Linux makes of it is in `../kernel/lvm_grows.rs`.)

use std::fs;
use std::path::Path;
use std::thread;

use serde_json::Value;
use vhostload::{Disk, Options};

use crate::support::lvm::Lab;
use crate::support::nbd::{checksum, python};
use crate::support::{run, run_refused, until};

const MIB: u64 = 1 << 20;
const DISKS: [&str; 5] = ["a", "b", "c", "d", "e"];

/// A group of five disks with this volume.
fn group(create: &[&str]) -> Lab {
    let lab = Lab::new(&DISKS.map(|disk| (disk, 81)));
    lab.verb(&[&["vg", "create", "vg"][..], &DISKS].concat());
    lab.verb(&[&["lv", "create", "vg/r"][..], create].concat());
    lab
}

/// A change that the one server makes.
fn served(lab: &Lab, args: &[&str]) -> String {
    run(&mut lab.scratch.blockwork(args))
}

/// What the server says of a volume.
fn shown(lab: &Lab, name: &str) -> Value {
    let said = served(lab, &["lv", "show", "--all", "--json", name]);
    let mut all: Value = serde_json::from_str(&said).expect("JSON");
    all[0].take()
}

fn is_in_sync(lab: &Lab, name: &str) -> bool {
    let now = shown(lab, name);
    now["sync_percent"] == 100.0 && now["sync"]["action"] == "idle"
}

/// Writes blocks of its first MiB at random, and reads them again, until the file `stop` is there; then the last block of the volume, as
/// large as it is then. What it prints: how often it has written, and that size.
fn client(lab: &Lab, export: &str) -> String {
    let (uri, started, stop) =
        (lab.scratch.uri(export), lab.scratch.path("started"), lab.scratch.path("stop"));
    python(&format!(
        "import random\nh = connect({uri:?})\nblocks, n = {{}}, 0\n\
         while n < 20 or not os.path.exists({stop:?}):\n    \
             at, n = random.randrange(256) * 4096, n + 1\n    \
             blocks[at] = n.to_bytes(4, 'big') * 1024\n    \
             h.pwrite(blocks[at], at)\n    \
             if n % 16 == 0: h.flush()\n    \
             if n == 20: open({started:?}, 'w')\n    \
             at = random.choice(list(blocks))\n    \
             assert h.pread(4096, at) == blocks[at], at\n\
         h.flush()\n\
         assert all(h.pread(4096, at) == block for at, block in blocks.items())\n\
         h.shutdown()\n\
         h = connect({uri:?})\n\
         h.pwrite(b'e' * 4096, h.get_size() - 4096)\nh.flush()\nprint(n, h.get_size())\nh.shutdown()\n"
    ))
}

/// Changes a volume while a client writes to it; what that prints.
fn under_load(lab: &Lab, export: &str, change: impl FnOnce()) -> String {
    thread::scope(|scope| {
        let client = scope.spawn(|| client(lab, export));
        until("the client writes", || lab.scratch.path("started").exists() || client.is_finished());
        change();
        fs::write(lab.scratch.path("stop"), "").expect("a file");
        client.join().expect("the client has found what it wrote")
    })
}

fn grows_under_load(kind: &str) {
    let lab = group(&["--type", kind, "--size", "8M"]);
    let socket = lab.scratch.at("guest");
    let server = lab.scratch.serve([&["--disk"][..], &DISKS].concat());
    served(&lab, &["export", "add", "vg/r", "--vhost-user", &socket]);
    let before = shown(&lab, "vg/r")["bytes"].as_u64().expect("a size");
    let guest = Disk::new(Path::new(&socket), Options::default()).expect("a guest");
    assert_eq!(guest.config().expect("a size").capacity, before / 512);
    let said = under_load(&lab, "vg/r", || {
        served(&lab, &["lv", "resize", "vg/r", "--size", "+8M"]);
        served(&lab, &["lv", "resize", "vg/r", "--size", "+8M"]);
    });
    let after = shown(&lab, "vg/r")["bytes"].as_u64().expect("a size");
    assert!(after >= before + 16 * MIB, "{kind}: {before}, {after}");
    assert!(said.trim_end().ends_with(&format!(" {after}")), "{kind}: {said}, expected {after}");
    guest.wait_for_config_change().expect("the guest is told");
    drop(guest);
    until("it is in sync", || is_in_sync(&lab, "vg/r"));
    let sum = checksum(&lab.scratch, "vg/r", 0..u64::MAX);
    let ended = server.stop();
    assert!(ended.status.success() && !ended.stderr.contains("larger in the text"), "{}", ended.stderr);
    lab.expect_sound();
    let sizes = lab.columns("lv_name,lv_size");
    let (mib, legs) = (after / MIB, sizes.iter().filter(|line| line.contains("_rimage_")).count());
    assert!(sizes.contains(&format!("r;{mib}.00")) && legs >= 2, "{sizes:?}");

    // The next server finds all of it, and nothing to be done.
    let server = lab.scratch.serve([&["--disk"][..], &DISKS].concat());
    assert_eq!(shown(&lab, "vg/r")["sync_percent"], 100.0);
    assert_eq!(checksum(&lab.scratch, "vg/r", 0..u64::MAX), sum, "{kind}");
    let ended = server.stop();
    assert!(ended.status.success() && !ended.stderr.contains("it has grown"), "{}", ended.stderr);
}

#[test]
fn a_mirror_grows_while_clients_write() {
    grows_under_load("raid1");
}

#[test]
fn mirrored_stripes_grow_while_clients_write() {
    grows_under_load("raid10");
}

#[test]
fn what_has_a_parity_grows_while_clients_write() {
    grows_under_load("raid4");
    grows_under_load("raid5");
    grows_under_load("raid6");
}

#[test]
fn one_that_lacks_a_leg_or_is_filling_one_grows_if_it_has_mirrors() {
    for (kind, grows) in [("raid1", true), ("raid5", false)] {
        let lab = group(&["--type", kind, "--size", "8M"]);
        let serve =
            |disks: &[&str], more: &[&str]| lab.scratch.serve([&["--disk"][..], disks, more].concat());
        let server = serve(&DISKS, &[]);
        until("it is in sync", || is_in_sync(&lab, "vg/r"));
        assert!(server.stop().status.success());
        let resize = ["lv", "resize", "vg/r", "--size", "+8M"];
        // As LVM has it of a group that lacks a disk.
        let server = serve(&["a", "c", "d", "e"], &[]);
        let uri = lab.scratch.uri("vg/r");
        python(&format!("h = connect({uri:?})\nh.pwrite(b'n' * 65536, 1 << 20)\nh.flush()\nh.shutdown()\n"));
        let said = run_refused(&mut lab.scratch.blockwork(resize));
        assert!(said.contains("missing"), "{said}");
        server.stop();
        let server = serve(&DISKS, &["--set", "raid:sync_speed_min=1", "--set", "raid:sync_speed_max=1"]);
        until("a leg is being filled", || shown(&lab, "vg/r")["sync"]["action"] == "recover");
        if grows {
            served(&lab, &resize);
            assert_eq!(shown(&lab, "vg/r")["bytes"], 16 * MIB);
            until("it goes on", || shown(&lab, "vg/r")["sync"]["action"] == "recover");
        } else {
            let said = run_refused(&mut lab.scratch.blockwork(resize));
            assert!(said.contains("lacks a leg, or one is being filled"), "{said}");
        }
        server.stop();
        let server = serve(&DISKS, &[]);
        until("it is whole", || is_in_sync(&lab, "vg/r"));
        if !grows {
            served(&lab, &resize);
        }
        let size = shown(&lab, "vg/r")["bytes"].as_u64().expect("a size");
        python(&format!(
            "h = connect({uri:?})\nassert h.get_size() == {size}\nassert h.pread(65536, 1 << 20) == b'n' * 65536\n\
             h.pwrite(b'e' * 4096, {size} - 4096)\nh.flush()\nh.shutdown()\n"
        ));
        until("all of it is in sync", || is_in_sync(&lab, "vg/r"));
        assert!(server.stop().status.success());
        lab.expect_sound();
    }
}

#[test]
fn an_origin_on_a_mirror_grows_and_its_snapshot_stays_what_it_was() {
    let lab = group(&["--type", "raid1", "--size", "8M"]);
    let server = lab.scratch.serve([&["--disk"][..], &DISKS].concat());
    let uri = lab.scratch.uri("vg/r");
    python(&format!("h = connect({uri:?})\nh.pwrite(b'o' * (8 << 20), 0)\nh.flush()\nh.shutdown()\n"));
    served(&lab, &["lv", "snapshot", "vg/r", "--size", "12M", "--name", "snap"]);
    let sum = checksum(&lab.scratch, "vg/snap", 0..u64::MAX);
    let said = under_load(&lab, "vg/r", || drop(served(&lab, &["lv", "resize", "vg/r", "--size", "+8M"])));
    assert!(said.trim_end().ends_with(&format!(" {}", 16 * MIB)), "{said}");
    assert_eq!(checksum(&lab.scratch, "vg/snap", 0..u64::MAX), sum);
    until("it is in sync", || is_in_sync(&lab, "vg/r"));
    let now = checksum(&lab.scratch, "vg/r", 0..u64::MAX);
    assert!(server.stop().status.success());
    lab.expect_sound();
    let server = lab.scratch.serve([&["--disk"][..], &DISKS].concat());
    assert_eq!(checksum(&lab.scratch, "vg/snap", 0..u64::MAX), sum);
    assert_eq!(checksum(&lab.scratch, "vg/r", 0..u64::MAX), now);
    assert!(server.stop().status.success());
}

/// A pool whose map or data is a raid1, as `lvconvert --type raid1 vg/pool_tdata` leaves it, which wants the kernel.
fn pool_on_a_raid1(part: &str, extents: u64) -> Lab {
    let lab = Lab::new(&[("a", 161), ("b", 161), ("c", 161)]);
    lab.verb(&["vg", "create", "vg", "a", "b", "c"]);
    lab.verb(&["lv", "create", "vg/pool", "--thin-pool", "--size", "16M", "--pool-metadata-size", "4M"]);
    lab.verb(&["lv", "create", "vg/r", "--mirrors", "1", "--extents", &extents.to_string()]);
    lab.put_on_raid(part, "r");
    lab.verb(&["lv", "create", "vg/one", "--thin", "pool", "-V", "64M"]);
    lab
}

/// Writes all of the thin volume but its last MiB; then reads it.
fn fill(lab: &Lab) {
    python(&format!(
        "h = connect({:?})\ndata = bytes(range(256)) * 4096\n\
         for mib in range(63): h.pwrite(data, mib << 20)\n\
         h.flush()\nassert all(h.pread(1 << 20, mib << 20) == data for mib in range(63))\nh.shutdown()\n",
        lab.scratch.uri("vg/one")
    ));
}

#[test]
fn a_pool_whose_data_is_a_mirror_extends_itself() {
    let lab = pool_on_a_raid1("pool_tdata", 4);
    let auto = ["thin-pool:thin_pool_autoextend_threshold=70", "thin-pool:thin_pool_autoextend_percent=50"];
    let server = lab.scratch.serve(["--disk", "a", "b", "c", "--set", auto[0], "--set", auto[1]]);
    fill(&lab);
    until("the pool has come below its mark", || {
        let pool = shown(&lab, "vg/pool");
        pool["bytes"].as_u64() >= Some(88 * MIB) && pool["data_percent"].as_f64() < Some(72.0)
    });
    served(&lab, &["lv", "resize", "vg/pool", "--size", "+4M"]);
    let pool = shown(&lab, "vg/pool")["bytes"].as_u64().expect("a size") / MIB;
    let ended = server.stop();
    assert!(ended.status.success(), "{}", ended.stderr);
    lab.expect_sound();
    let sizes = lab.columns("lv_name,segtype,lv_size");
    for line in [
        format!("pool;thin-pool;{pool}.00"),
        format!("[pool_tdata];raid1;{pool}.00"),
        format!("[pool_tdata_rimage_1];linear;{pool}.00"),
    ] {
        assert!(sizes.contains(&line), "{line}: {sizes:?}");
    }
    let dump = lab.dumped("pool");
    assert!(dump.contains(&format!("nr_data_blocks=\"{}\"", pool * 16)), "{dump}");
}

#[test]
fn a_pool_whose_map_is_a_mirror_gets_a_larger_map() {
    let lab = pool_on_a_raid1("pool_tmeta", 1);
    let server = lab.scratch.serve(["--disk", "a", "b", "c"]);
    served(&lab, &["lv", "resize", "vg/pool", "--pool-metadata-size", "+4M"]);
    let counts_all = || {
        let pool = shown(&lab, "vg/pool");
        assert!(pool["status"].as_str().is_some_and(|status| status.contains("/2048 ")), "{pool}");
    };
    counts_all();
    served(&lab, &["lv", "resize", "vg/pool", "--size", "+64M"]);
    fill(&lab);
    assert!(server.stop().status.success());
    lab.expect_sound();
    let sizes = lab.columns("lv_name,segtype,lv_size");
    for line in ["[pool_tmeta];raid1;8.00", "[pool_tmeta_rimage_0];linear;8.00", "pool;thin-pool;80.00"] {
        assert!(sizes.contains(&line.to_owned()), "{line}: {sizes:?}");
    }
    // The map is as large as its legs, and sound.
    let server = lab.scratch.serve(["--disk", "a", "b", "c"]);
    counts_all();
    assert!(server.stop().status.success());
}

//! Partitions in volumes of a group that is changed while it is served, and an array upon some: partitions are the volume's that they lie on,
//! whatever that is called and whatever becomes of it, and nothing is cut off below what lies on a volume.

use std::collections::BTreeMap;

use rustix::process::Signal;

use crate::support::lvm::Lab;
use crate::support::nbd::python;
use crate::support::{Server, Tracing, output, run, run_refused, tool, until};

/// A verb that the running server is asked for.
fn served(lab: &Lab, args: &[&str]) -> String {
    run(&mut lab.scratch.blockwork(args))
}

/// A group with a pool, and what else `volumes` says by `lv create` each; each of these has one partition of 2 MiB from 1 MiB on by now, which
/// begins with its volume's name.
fn group(volumes: &[&str]) -> Lab {
    let lab = Lab::new(&[("a", 165)]);
    lab.verb(&["vg", "create", "vg", "a"]);
    lab.verb(&["lv", "create", "vg/pool", "--thin-pool", "--size", "32M"]);
    for volume in volumes {
        lab.verb(&[&["lv", "create"], &volume.split(' ').collect::<Vec<_>>()[..]].concat());
    }
    let server = lab.scratch.serve(["--disk", "a"]);
    for volume in volumes {
        let name = volume.split(' ').next().expect("its name");
        let uri = lab.scratch.uri(name);
        python(&format!(
            "import struct\nh = connect({uri:?})\n\
             entry = struct.pack('<B3sB3sII', 0, bytes(3), 0x83, bytes(3), 2048, 4096)\n\
             h.pwrite(bytes(446) + entry + bytes(48) + b'\\x55\\xaa', 0)\n\
             h.pwrite(b'{name}'.ljust(512), 1 << 20)\nh.flush()\n"
        ));
    }
    server.stop_quietly();
    lab
}

/// What the first sector of an export has, from a byte on.
fn begin(lab: &Lab, export: &str, at: u64) -> String {
    let uri = lab.scratch.uri(export);
    python(&format!("print(connect({uri:?}).pread(512, {at}).decode().strip())\n")).trim().to_owned()
}

fn write(lab: &Lab, export: &str, text: &str) {
    let uri = lab.scratch.uri(export);
    python(&format!("h = connect({uri:?})\nh.pwrite(b'{text}'.ljust(512), 0)\nh.flush()\n"));
}

/// All that the server offers.
fn exports(lab: &Lab) -> Vec<String> {
    let said = run(tool("nbdinfo").args(["--list", "--json", &lab.scratch.uri("")]));
    let all: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    let names = all["exports"].as_array().expect("exports").iter();
    let mut names: Vec<String> = names.map(|one| text(&one["export-name"])).collect();
    names.sort_unstable();
    names
}

fn expect_exports(lab: &Lab, expected: &[&str]) {
    assert_eq!(exports(lab), expected);
    let status = lab.scratch.ask("/v1/status");
    let volumes = status["volumes"].as_array().expect("volumes").iter();
    let mut names: Vec<&str> = volumes.map(|one| one["name"].as_str().expect("a name")).collect();
    names.sort_unstable();
    assert_eq!(names, expected);
}

/// What counters and traces call layers, by number.
fn nodes(lab: &Lab) -> BTreeMap<u64, String> {
    let stats = lab.scratch.ask("/v1/stats");
    let nodes = stats["nodes"].as_array().expect("nodes").iter();
    nodes.map(|node| (node["node"].as_u64().expect("a number"), text(&node["name"]))).collect()
}

fn text(value: &serde_json::Value) -> String {
    value.as_str().expect("a text").to_owned()
}

fn serve(lab: &Lab) -> Server {
    lab.scratch.serve(["--disk", "a"])
}

/// Two volumes of each kind change their names, and somebody else gets a name that has become free.
#[test]
fn partitions_go_by_the_name_that_their_volume_has_now() {
    let kinds =
        [["vg/a --size 12M", "vg/b --size 12M"], ["vg/a --thin pool -V 12M", "vg/b --thin pool -V 12M"]];
    for volumes in kinds {
        let lab = group(&volumes);
        let server = serve(&lab);
        expect_exports(&lab, &["vg/a", "vg/a/1", "vg/b", "vg/b/1"]);
        let before = nodes(&lab);
        for [old, new] in [["vg/a", "x"], ["vg/b", "a"], ["vg/x", "b"]] {
            served(&lab, &["lv", "rename", old, new]);
        }
        // The layers keep their numbers, and their figures with these.
        let swapped = |name: &String| match name.strip_prefix("vg/a") {
            Some(rest) => format!("vg/b{rest}"),
            None => name.strip_prefix("vg/b").map_or(name.clone(), |rest| format!("vg/a{rest}")),
        };
        assert!(
            ["vg/a", "vg/a/1"].iter().all(|name| before.values().any(|known| known == name)),
            "{before:?}"
        );
        assert_eq!(nodes(&lab), before.iter().map(|(node, name)| (*node, swapped(name))).collect());
        assert_eq!((&*begin(&lab, "vg/a/1", 0), &*begin(&lab, "vg/b/1", 0)), ("vg/b", "vg/a"));
        write(&lab, "vg/a/1", "new");
        assert_eq!((&*begin(&lab, "vg/a", 1 << 20), &*begin(&lab, "vg/b", 1 << 20)), ("new", "vg/a"));

        served(&lab, &["lv", "rename", "vg/a", "x"]);
        served(&lab, &["lv", "create", "vg/a", "--size", "8M"]);
        expect_exports(&lab, &["vg/a", "vg/b", "vg/b/1", "vg/x", "vg/x/1"]);
        assert_eq!(begin(&lab, "vg/x/1", 0), "new");
        // A trace is of the volume that has the name.
        let tracing = Tracing::start(&lab.scratch, &["vg/x/1"]);
        assert_eq!(begin(&lab, "vg/x/1", 0), "new");
        tracing.signal(Signal::INT);
        let traced = tracing.finish();
        assert!(traced.contains(" Q "), "{traced}");
        let said = run_refused(&mut lab.scratch.blockwork(["trace", "vg/a/1"]));
        assert!(said.contains("vg/x/1"), "{said}");

        // A volume goes with its partitions, and a new one of that name has none.
        until("nobody has it open", || {
            output(&mut lab.scratch.blockwork(["lv", "remove", "vg/x"])).status.success()
        });
        served(&lab, &["lv", "create", "vg/x", "--size", "8M"]);
        expect_exports(&lab, &["vg/a", "vg/b", "vg/b/1", "vg/x"]);
        server.stop_quietly();
        let server = serve(&lab);
        expect_exports(&lab, &["vg/a", "vg/b", "vg/b/1", "vg/x"]);
        assert_eq!(begin(&lab, "vg/b/1", 0), "vg/a");
        server.stop_quietly();
        lab.expect_sound();
    }
}

/// The volume has new layers when it has grown. A partition that is served alone goes by these as well, and so nothing is cut off
/// below it.
#[test]
fn a_volume_of_which_a_partition_alone_is_served_grows_and_is_not_made_smaller() {
    let lab = group(&["vg/a --size 8M"]);
    let server = lab.scratch.serve(["--disk", "a", "vg/a/1"]);
    served(&lab, &["lv", "resize", "vg/a", "--size", "+4M"]);
    write(&lab, "vg/a/1", "grown");
    let smaller = ["lv", "resize", "vg/a", "--extents", "1", "--force"];
    let said = run_refused(&mut lab.scratch.blockwork(smaller));
    assert!(said.contains("a client may be using what would be cut off"), "{said}");
    assert_eq!(begin(&lab, "vg/a/1", 0), "grown");
    server.stop_quietly();
}

/// Each partition holds on to the layers of the volume, served or not.
#[test]
fn thin_volumes_with_partitions_are_removed_by_their_server() {
    let thin = ["vg/s --thin pool -V 12M", "vg/t --thin pool -V 12M", "vg/u --thin pool -V 12M"];
    let lab = group(&thin);
    let server = serve(&lab);
    served(&lab, &["lv", "remove", "vg/s"]);
    expect_exports(&lab, &["vg/t", "vg/t/1", "vg/u", "vg/u/1"]);
    server.stop_quietly();
    let only = ["--disk", "a", "vg/t", "vg/u"];
    let server = lab.scratch.serve(only);
    served(&lab, &["lv", "remove", "vg/t"]);
    expect_exports(&lab, &["vg/u"]);
    assert_eq!(begin(&lab, "vg/u", 1 << 20), "vg/u");
    server.stop_quietly();
    lab.expect_sound();
}

/// An array has the layers that its members had when it was assembled.
#[test]
fn a_volume_on_which_an_array_lies_grows_and_is_not_made_smaller() {
    let lab = Lab::new(&[("a", 45)]);
    lab.verb(&["vg", "create", "vg", "a"]);
    lab.verb(&["lv", "create", "vg/m0", "--size", "8M"]);
    lab.verb(&["lv", "create", "vg/m1", "--size", "8M"]);
    for member in ["m0", "m1"] {
        lab.scratch.sparse(member, 8 << 20);
    }
    let create = "md create --level 1 --raid-devices 2 --name m --assume-clean m0 m1";
    run(&mut lab.scratch.blockwork(create.split(' ')));
    let server = serve(&lab);
    for member in ["m0", "m1"] {
        run(tool("nbdcopy").args([&lab.scratch.at(member), &lab.scratch.uri(&format!("vg/{member}"))]));
    }
    server.stop_quietly();
    let server = serve(&lab);
    expect_exports(&lab, &["md/m"]);
    served(&lab, &["lv", "resize", "vg/m0", "--size", "+4M"]);
    let smaller = ["lv", "resize", "vg/m0", "--size", "4M", "--force"];
    let said = run_refused(&mut lab.scratch.blockwork(smaller));
    assert!(said.contains("a client may be using what would be cut off"), "{said}");
    // What the array writes would not be kept for a snapshot.
    let said = run_refused(&mut lab.scratch.blockwork(["lv", "snapshot", "vg/m0", "--size", "4M"]));
    assert!(said.contains("md/m lies on it: stop serving it first"), "{said}");
    server.stop_quietly();
}

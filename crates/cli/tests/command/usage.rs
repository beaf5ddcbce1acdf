//! Exit codes: 2 for a command line that is wrong whatever there is on the disks, and 1 for what fails.

use crate::support::{Scratch, both, output, run};

fn disks() -> Scratch {
    let scratch = Scratch::new();
    ["a", "b", "c", "d"].iter().for_each(|disk| drop(scratch.sparse(disk, 64 << 20)));
    run(&mut scratch.blockwork(["vg", "create", "vg0", "c", "d"]));
    scratch
}

fn ends_with(scratch: &Scratch, code: i32, line: &str) {
    let done = output(&mut scratch.blockwork(line.split(' ')));
    let said = both(&done);
    assert_eq!(done.status.code(), Some(code), "{line}: {said}");
    assert!(said.contains("error: "), "{line}: {said}");
}

#[test]
fn a_command_line_that_is_wrong_by_itself_ends_with_2_and_nothing_is_done() {
    const LINES: &[&str] = &[
        // A server that nobody could reach, or that has no such setting, address, disk or option of one.
        "serve --disk a",
        "serve --disk a --nbd foo",
        "serve --disk a --nbd unix:",
        "serve --disk a --nbd 127.0.0.1:x",
        "serve --disk a --nbd 0.0.0.0:0",
        "serve --disk a --nbd unix:s --set foo=1",
        "serve --disk a --nbd unix:s --set nomerges",
        "serve --disk a --nbd unix:s --set nosuch:nomerges=1",
        "serve --disk a,foo=1 --nbd unix:s",
        "serve --disk a,direct=maybe --nbd unix:s",
        "serve --disk null:x --nbd unix:s",
        "serve --disk nfs://x --nbd unix:s",
        "serve --disk a disk/a --vhost-user s --vhost-user t",
        "serve --disk a --vhost-user unix:s",
        "serve --disk a --fuse fuse:s",
        "scan a,foo=1",
        "scan null:",
        "trace x -w nan",
        "trace x -w -1",
        "trace x -w 1e30",
        "trace x -o t.parquet",
        "md create -l1 -n2 a",
        "md create -l1 -n1 a",
        "md create -l1 -n2 a b -c 4",
        "md create -l0 -n2 a b -p n2",
        "md create -l0 -n2 a b --bitmap internal",
        "md create -l0 -n2 -x1 a b c",
        "md create -l10 -n2 a b -p x9",
        "md create -l10 -n2 a b -c 3",
        "md create -l10 -n2 a b -c x",
        "md create -l1 -n2 a b -N a/b",
        "md create -l1 -n2 a b --data-offset 3",
        "md create -l1 -n2 missing missing",
        "md create -l5 -n3 missing missing a",
        "md create -l5 -n2 a b -p n2",
        "md create -l4 -n2 a b -p ls",
        "md create -l5 -n2 a b -c 3",
        "md create -l6 -n3 a b c",
        "md grow md/x -z abc --disk a",
        "md grow md/x -z 0 --disk a",
        "md check data --disk a",
        "vg create vg1 a -s x",
        "vg create vg1 a -s 0",
        "vg create a/b a",
        "vg create vg1 a --addtag %",
        "vg rename vg0 a/b --disk c d",
        "lv create vg0 -L 4M --disk c d",
        "lv create vg0/x -L x --disk c d",
        "lv create vg0/x -L 0 --disk c d",
        "lv create vg0/x -l 101%FREE --disk c d",
        "lv create vg0/x -L 4M -i 3 --type linear --disk c d",
        "lv create vg0/x -L 4M -i 2 -I x --disk c d",
        "lv create vg0/x -L 4M -m 1 -R 3 --disk c d",
        "lv create vg0/x -L 4M --nosync --disk c d",
        "lv create vg0/x -L 4M --serve --disk c d",
        "lv create vg0/x_tdata -L 4M --disk c d",
        "lv create vg0/p -L 4M --thin-pool -c 3 --disk c d",
        "lv create vg0/v --thin p -V x --disk c d",
        "lv resize vg0/x -L x --disk c d",
        "lv rename vg0/x vg1/y --disk c d",
        "lv remove vg0/x vg1/y --disk c d",
        "lv remove x --disk c d",
        "lv snapshot vg0/x -L 4M -c x --disk c d",
        "lv snapshot vg0/x -l 0%ORIGIN --disk c d",
        "message dm/pool 1 create_thin 0",
        "message dm/pool 0 grow",
        "reproduce discard --stack n9",
        "reproduce linearize --kernel foo",
        "reproduce linearize --noise -1",
    ];
    let scratch = disks();
    let before: Vec<_> = ["a", "b", "c", "d"].map(|disk| scratch.read(disk)).into();
    LINES.iter().for_each(|line| ends_with(&scratch, 2, line));
    for (disk, before) in ["a", "b", "c", "d"].iter().zip(&before) {
        assert!(scratch.read(disk) == *before, "{disk} was written to");
    }
}

#[test]
fn what_is_not_there_or_has_no_room_ends_with_1() {
    let scratch = disks();
    for line in [
        "serve --disk nosuch --nbd unix:s",
        "serve --disk a nosuch/vol --nbd unix:s",
        "serve --disk a --nbd unix:nosuch/s",
        "scan nosuch",
        "trace nosuch -w 1",
        "md status nosuch",
        "md examine a",
        "md create -l1 -n2 -z 1G a b",
        "lv create vg0/x -L 1G --disk c d",
        "lv remove vg0/nosuch --disk c d",
        "lv show nosuch --disk c d",
        "vg show nosuch --disk c d",
        "message dm/nosuch 0 create_thin 0",
    ] {
        ends_with(&scratch, 1, line);
    }
}

#[test]
fn an_address_in_place_of_a_path_is_refused_with_the_path() {
    let scratch = Scratch::new();
    let _disk = scratch.sparse("a", 1 << 20);
    let done = output(&mut scratch.blockwork("serve --disk a --vhost-user unix:/tmp/s".split(' ')));
    let said = both(&done);
    assert!(said.contains("expected a path alone: /tmp/s (or ./unix:/tmp/s"), "{said}");
}

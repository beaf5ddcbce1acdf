//! `serve --table` with snapshots: real clients of an origin and its snapshots, compared with bytes that the test keeps by
//! itself, and counts of what reaches the disks.

mod support;

use support::nbd::{fio, python};
use support::{Scratch, Server, run, tool};

const MIB: usize = 1 << 20;

/// All bytes of an export, as nbdcopy reads them.
fn content(scratch: &Scratch, export: &str) -> Vec<u8> {
    run(tool("nbdcopy").args(["--requests=32", &scratch.uri(export), &scratch.at("copied")]));
    scratch.read("copied")
}

/// Writes bytes at an offset of an export, flushed.
fn write(scratch: &Scratch, export: &str, offset: usize, byte: u8, length: usize) {
    let uri = scratch.uri(export);
    python(&format!(
        "h = connect({uri:?})\nfor at in range(0, {length}, 65536):\n    \
         h.pwrite(bytes([{byte}]) * min(65536, {length} - at), {offset} + at)\nh.flush()\n"
    ));
}

const TABLE: &str = "\
real: 0 8192 linear disk.img 0
origin: 0 8192 snapshot-origin dm/real
first: 0 8192 snapshot dm/real first.cow P 8
second: 0 8192 snapshot dm/real second.cow PO 64
third: 0 8192 snapshot dm/real third.cow N 16
";

#[test]
fn snapshots_stay_as_the_origin_was_and_keep_what_was_written_to_them() {
    let scratch = Scratch::new();
    let frozen = scratch.noise("disk.img", 4 * MIB, 1);
    for store in ["first.cow", "second.cow", "third.cow"] {
        scratch.sparse(store, 6 * MIB as u64);
    }
    let table = scratch.write("t.table", TABLE);
    let names = ["dm/origin", "dm/first", "dm/second", "dm/third"];
    let mut args = vec!["--table", &*table];
    args.extend(names);
    let server = scratch.serve(&args);
    let mut expected = [0; 4].map(|_| frozen.clone());
    for (volume, offset, byte, length) in [
        (0, 100_000, 1, 1_000_000),
        (1, 50_000, 2, 300_000),
        (2, 3_999_999, 3, 1000),
        (3, 0, 4, 70_000),
        (0, 3_900_000, 5, 200_000),
        (1, 4 * MIB - 513, 6, 513),
    ] {
        write(&scratch, names[volume], offset, byte, length);
        expected[volume][offset..offset + length].fill(byte);
    }
    for (name, expected) in names.iter().zip(&expected) {
        assert!(content(&scratch, name) == *expected, "{name}");
    }
    server.stop_quietly();
    assert!(scratch.read("disk.img") == expected[0], "the origin's disk is the origin");

    // Again, from what is on the disks. What was transient is gone: it is as the origin is now.
    expected[3] = expected[0].clone();
    args.push("--read-only");
    let server = scratch.serve(&args);
    for (name, expected) in names.iter().zip(&expected) {
        assert!(content(&scratch, name) == *expected, "{name}, served again");
    }
    server.stop_quietly();
}

#[test]
fn a_second_server_of_the_other_half_is_refused() {
    let scratch = Scratch::new();
    scratch.noise("disk.img", MIB, 1);
    scratch.sparse("a.cow", 2 * MIB as u64);
    let origin = scratch.write("origin.table", "0 2048 snapshot-origin disk.img\n");
    let snapshot = scratch.write("snapshot.table", "0 2048 snapshot disk.img a.cow P 8\n");
    let server = scratch.serve(["--table", &snapshot]);
    let said = scratch.refused(["--table", &origin]);
    assert!(said.contains("disk.img"), "{said}");
    server.stop_quietly();
}

/// 64 MiB in pieces of 4 KiB, 32 at a time, through a snapshot of which every other MiB has been copied out: an eighth of what a
/// report had in requests of 8 sectors, 131,072 of them, and what should take 2,100.
#[test]
fn pieces_of_a_half_copied_snapshot_are_large_requests_again_at_the_disks() {
    const SIZE: u64 = 64 << 20;
    let scratch = Scratch::new();
    scratch.sparse("disk.img", SIZE);
    scratch.sparse("a.cow", SIZE);
    let sectors = SIZE / 512;
    let table = scratch.write(
        "t.table",
        format!(
            "origin: 0 {sectors} snapshot-origin disk.img\nsnap: 0 {sectors} snapshot disk.img a.cow P 8\n"
        ),
    );
    let socket = scratch.at("nbd.sock");
    let serve = |names: &[&str]| {
        let mut command = scratch.blockwork(["serve", "--stats", "--json", "--table", &table, "--nbd"]);
        Server::start(command.arg(format!("unix:{socket}")).args(names))
    };
    let server = serve(&["dm/origin"]);
    python(&format!(
        "h = connect('nbd+unix:///dm/origin?socket={socket}')\n\
         for at in range(0, {SIZE}, 2 << 20): h.pwrite(bytes([1]) * (1 << 20), at)\n"
    ));
    server.stop_for_stats();
    let server = serve(&["dm/snap"]);
    let uri = format!("nbd+unix:///dm/snap?socket={socket}");
    run(&mut fio(&scratch, &uri, &["--rw=read", "--bs=4k", "--iodepth=32", "--size=64M"]));
    let stats = server.stop_for_stats();
    let read = |counter: &str| stats.count("disk.img", counter) + stats.count("a.cow", counter);
    assert!((64..=2_100 / 8).contains(&read("reads")), "{} reads of the disks", read("reads"));
    // What is read ahead where a MiB ends is read in vain.
    assert!((SIZE..SIZE * 3 / 2).contains(&read("read_bytes")), "{} bytes", read("read_bytes"));
}

#[test]
fn a_table_merges_a_snapshot_while_its_origin_is_read_and_written_and_another_snapshot_stays() {
    let scratch = Scratch::new();
    let frozen = scratch.noise("disk.img", 4 * MIB, 1);
    scratch.sparse("first.cow", 6 * MIB as u64);
    scratch.sparse("second.cow", 6 * MIB as u64);
    let real = "real: 0 8192 linear disk.img 0\n";
    let other = "second: 0 8192 snapshot dm/real second.cow P 64\n";
    let before = scratch.write(
        "before.table",
        format!("{real}origin: 0 8192 snapshot-origin dm/real\nfirst: 0 8192 snapshot dm/real first.cow P 8\n{other}"),
    );
    let server = scratch.serve(["--table", &before, "dm/origin", "dm/first", "dm/second"]);
    write(&scratch, "dm/origin", 100_000, 1, 3_000_000);
    write(&scratch, "dm/first", 50_000, 2, 300_000);
    server.stop_quietly();
    let mut merged = frozen.clone();
    merged[50_000..350_000].fill(2);

    let merge = scratch
        .write("merge.table", format!("{real}origin: 0 8192 snapshot-merge dm/real first.cow P 8\n{other}"));
    let server = scratch.serve(["--table", &merge, "dm/origin", "dm/second"]);
    assert!(content(&scratch, "dm/origin") == merged);
    write(&scratch, "dm/origin", 200_000, 3, 1_000_000);
    merged[200_000..1_200_000].fill(3);
    // The list of exceptions begins in the second chunk.
    support::until("all is merged", || scratch.read("first.cow")[4096..8192].iter().all(|byte| *byte == 0));
    assert!(content(&scratch, "dm/origin") == merged);
    assert!(content(&scratch, "dm/second") == frozen);
    server.stop_quietly();
    assert!(scratch.read("disk.img") == merged, "nothing is left that only the store has");

    let both = scratch.write(
        "both.table",
        format!("{real}o: 0 8192 snapshot-origin dm/real\nm: 0 8192 snapshot-merge dm/real first.cow P 8\n"),
    );
    let said = scratch.refused(["--table", &both]);
    assert!(said.contains("snapshot-merge takes its place"), "{said}");
    let twice = scratch.write(
        "twice.table",
        format!(
            "{real}m: 0 8192 snapshot-merge dm/real first.cow P 8\ns: 0 8192 snapshot dm/real first.cow P 8\n"
        ),
    );
    let said = scratch.refused(["--table", &twice]);
    assert!(said.contains("the store of another snapshot"), "{said}");
}

//! `serve --table` with snapshots: real clients of an origin and its snapshots, compared with bytes that the test keeps by
//! itself, and counts of what reaches the disks.

use crate::support;
use crate::support::fs::Loop;
use crate::support::nbd::{fio, python};
use crate::support::{Scratch, Server, run, tool, until};

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
fn an_origin_that_ends_within_a_block_of_its_snapshots_store_is_refused() {
    let scratch = Scratch::new();
    scratch.noise("disk.img", 2051 * 512, 1);
    scratch.sparse("a.cow", 4 * MIB as u64);
    let looped = Loop::with(&["--direct-io=on", "--sector-size=4096"], &scratch.at("a.cow"));
    for targets in ["0 2051 snapshot disk.img", "0 2048 snapshot disk.img"] {
        let table = scratch.write("t.table", format!("{targets} {} P 8\n", looped.device));
        let said = scratch.refused(["--table", &table]);
        for word in ["t.table, line 1: ", "has 2051 sectors", "in the middle of a block of 4096 bytes"] {
            assert!(said.contains(word), "{said}");
        }
    }
    assert!(scratch.read("a.cow").iter().all(|byte| *byte == 0), "the store was written to");
}

#[test]
fn a_snapshot_keeps_the_end_of_an_origin_that_ends_within_a_block_of_its_disk() {
    const END: usize = 2051 * 512;
    let scratch = Scratch::new();
    let frozen = scratch.noise("disk.img", 2 * MIB, 1);
    let looped = Loop::with(&["--direct-io=on", "--sector-size=4096"], &scratch.at("disk.img"));
    scratch.sparse("a.cow", 4 * MIB as u64);
    let table = |targets: &str| {
        let real = format!("real: 0 2051 linear {} 0\n", looped.device);
        scratch.write("t.table", format!("{real}{targets}"))
    };
    let pair = table("origin: 0 2051 snapshot-origin dm/real\nsnap: 0 2051 snapshot dm/real a.cow P 8\n");
    let server = scratch.serve(["--table", &pair, "dm/origin", "dm/snap"]);
    write(&scratch, "dm/origin", END - 512, 1, 512);
    assert!(content(&scratch, "dm/snap") == frozen[..END], "the snapshot is not what its origin was");
    write(&scratch, "dm/snap", END - 1536, 2, 1024);
    let snapshot = content(&scratch, "dm/snap");
    server.stop_quietly();
    // And merged back, which writes that end to the origin.
    let merge = table("origin: 0 2051 snapshot-merge dm/real a.cow P 8\n");
    let server = scratch.serve(["--table", &merge, "dm/origin"]);
    until("the merge is done", || statuses(&scratch)[0].as_deref().is_some_and(|it| it.starts_with("16/")));
    assert!(content(&scratch, "dm/origin") == snapshot, "the origin is not what the snapshot was");
    server.stop();
    let disk = scratch.read("disk.img");
    assert!(disk[..END] == snapshot && disk[END..] == frozen[END..]);
}

/// The status of each volume, by the control API.
fn statuses(scratch: &Scratch) -> Vec<Option<String>> {
    let status = scratch.ask("/v1/status");
    let volumes = status["volumes"].as_array().expect("a list");
    volumes.iter().map(|volume| volume["status"].as_str().map(str::to_owned)).collect()
}

#[test]
fn the_control_api_tells_how_full_each_snapshot_is_and_which_are_lost() {
    let scratch = Scratch::new();
    scratch.noise("disk.img", 4 * MIB, 1);
    for (store, bytes) in [("first.cow", 6 * MIB), ("second.cow", 128 << 10), ("third.cow", 6 * MIB)] {
        scratch.sparse(store, bytes as u64);
    }
    // The second is `PO` and has room for two chunks of 32 KiB.
    let table = scratch.write("t.table", TABLE);
    let server = scratch.serve(["--table", &table, "dm/origin", "dm/first", "dm/second", "dm/third"]);
    let some = |text: &str| Some(text.to_owned());
    // Sectors in use, of all, and those of metadata: a header and an area.
    let new = [None, some("16/12288 16"), some("128/256 128"), some("0/12288 0")];
    assert_eq!(statuses(&scratch), new);
    write(&scratch, "dm/first", 0, 2, 4096);
    write(&scratch, "dm/third", 0, 2, 8192);
    write(&scratch, "dm/second", 0, 2, 1);
    let written = [None, some("24/12288 16"), some("192/256 128"), some("16/12288 0")];
    assert_eq!(statuses(&scratch), written);
    // A first write of its origin's that it has no room for costs the second snapshot, and no other.
    write(&scratch, "dm/origin", MIB, 3, 64 << 10);
    let lost = &statuses(&scratch)[..];
    assert_eq!(lost[2], some("Invalid"));
    assert_eq!((&lost[0], &lost[1]), (&None, &some("152/12288 16")));
    server.stop();
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

/// An origin and a snapshot in chunks of 4 KiB, on disks of `SIZE`.
struct Pair {
    scratch: Scratch,
    table: String,
    socket: String,
}

const SIZE: u64 = 64 << 20;

impl Pair {
    fn new() -> Pair {
        let scratch = Scratch::new();
        scratch.sparse("disk.img", SIZE);
        scratch.sparse("a.cow", SIZE);
        let n = SIZE / 512;
        let lines =
            format!("origin: 0 {n} snapshot-origin disk.img\nsnap: 0 {n} snapshot disk.img a.cow P 8\n");
        Pair { table: scratch.write("t.table", lines), socket: scratch.at("nbd.sock"), scratch }
    }

    fn serve(&self, name: &str) -> Server {
        let mut command =
            self.scratch.blockwork(["serve", "--stats", "--json", "--table", &self.table, "--nbd"]);
        Server::start(command.arg(format!("unix:{}", self.socket)).arg(name))
    }

    fn uri(&self, name: &str) -> String {
        format!("nbd+unix:///{name}?socket={}", self.socket)
    }

    /// Overwrites every other piece of the origin.
    fn copy_out_half(&self, piece: &str) {
        let server = self.serve("dm/origin");
        let job = [
            &*format!("--rw=write:{piece}"),
            &format!("--bs={piece}"),
            "--iodepth=16",
            "--size=64M",
            "--io_size=32M",
        ];
        run(&mut fio(&self.scratch, &self.uri("dm/origin"), &job));
        server.stop_for_stats();
    }
}

/// 64 MiB in pieces of 4 KiB through a snapshot of which half has been copied out: an eighth of what a report had in requests of 8
/// sectors, 131,072 of them, and what should take 2,100.
#[test]
fn pieces_of_a_half_copied_snapshot_are_large_requests_again_at_the_disks() {
    for piece in ["1m", "4k"] {
        let pair = Pair::new();
        pair.copy_out_half(piece);
        for depth in [32, 1] {
            let server = pair.serve("dm/snap");
            let depth = format!("--iodepth={depth}");
            run(&mut fio(
                &pair.scratch,
                &pair.uri("dm/snap"),
                &["--rw=read", "--bs=4k", &depth, "--size=64M"],
            ));
            let stats = server.stop_for_stats();
            let read = |counter: &str| stats.count("disk.img", counter) + stats.count("a.cow", counter);
            let case = format!("every other {piece}, {depth}: {}", read("reads"));
            assert!((64..=2_100 / 8).contains(&read("reads")), "{case} reads of the disks");
            // What the snapshot has itself of small pieces is read with the rest of the origin; where a MiB ends little is read in vain.
            let most = if piece == "1m" { SIZE * 9 / 8 } else { SIZE * 8 / 5 };
            let bytes = read("read_bytes");
            assert!((SIZE..most).contains(&bytes), "{case} reads, {bytes} bytes");
        }
    }
}

/// 1,024 chunks, overwritten one after the other by a client that has one request at a time.
#[test]
fn a_sequential_writer_of_an_origin_does_not_wait_for_each_chunk() {
    let pair = Pair::new();
    let server = pair.serve("dm/origin");
    run(&mut fio(
        &pair.scratch,
        &pair.uri("dm/origin"),
        &["--rw=write", "--bs=4k", "--iodepth=1", "--size=4M"],
    ));
    let stats = server.stop_for_stats();
    // How many batches there are depends on where copies and writer meet, and whether a write of the list is followed by a flush is
    // found out by trying; on the simulator's disks both are counted exactly (crates/sim/tests/snapshot_ahead.rs). What holds on any
    // machine: it is far from two for each chunk.
    let durable = stats.count("a.cow", "flushes") + stats.count("a.cow", "fua_writes");
    assert!((4..=1024 / 4).contains(&durable), "{durable} flushes and FUA writes");
    // What is copied ahead is at most half of what has been written.
    let copied = stats.count("a.cow", "write_bytes");
    assert!((4 << 20..7 << 20).contains(&copied), "{copied} bytes written to the store");
    let read = stats.count("disk.img", "read_bytes");
    assert!((4 << 20..7 << 20).contains(&read), "{read} bytes read of the origin: copies are not read ahead");
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

#[test]
fn what_copies_cost_in_locks_is_told_of() {
    let scratch = Scratch::new();
    scratch.noise("disk.img", 4 * MIB, 1);
    let table = scratch.write(
        "t.table",
        "real: 0 8192 linear disk.img 0\norigin: 0 8192 snapshot-origin dm/real\n\
         snap: 0 8192 snapshot dm/real memory:6M P 8\n",
    );
    let server = scratch.serve(["--table", &table, "--stats", "--json", "dm/origin", "dm/snap"]);
    write(&scratch, "dm/origin", MIB, 1, 65536);
    let said = server.stop().stderr;
    let report: serde_json::Value =
        said.lines().find_map(|line| serde_json::from_str(line).ok()).expect("statistics");
    let locks = report["locks"].as_array().expect("locks were taken");
    for name in ["copies", "who waits", "what is copied next", "stores", "memory"] {
        let is_it = |lock: &&serde_json::Value| {
            lock["name"].as_str().is_some_and(|whole| whole.ends_with(&format!(": {name}")))
        };
        let taken = locks.iter().find(is_it).and_then(|lock| lock["acquisitions"].as_u64());
        assert!(taken > Some(0), "{name}: {locks:?}");
    }
}

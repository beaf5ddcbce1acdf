//! `serve` of md arrays: what large discards become on the members. (That arrays of the kernel's are read and written as the
//! kernel does is shown in `kernel_*.rs`.)

use std::fs::File;
use std::time::{Duration, Instant};

use crate::support::fs::{LeftMount, Loop};
use crate::support::md::array;
use crate::support::nbd::python;
use crate::support::{Scratch, Server, Stats, run, tool};
use blockwork_format::md::Level;

/// 1.9 TB, in whole MiB.
const BYTES: u64 = 1_900_000_000_000 >> 20 << 20;
const MEMBERS: u16 = 4;

/// mkfs.xfs on a loop device over the array as a FUSE file: statistics, and how long it took.
fn mkfs(level: Level) -> (Scratch, Stats, Duration) {
    let scratch = Scratch::new();
    let disks = array(&scratch, "d", level, MEMBERS, BYTES);
    let place = scratch.at("fuse.img");
    let mut command = scratch.blockwork(["serve", "md/d", "--stats", "--json", "--fuse", &place, "--disk"]);
    let server = Server::start(command.args(disks));
    let _left = LeftMount(place.clone().into());
    let took = {
        let device = Loop::over(&place);
        let start = Instant::now();
        run(tool("mkfs.xfs").args(["-q", &device.device]));
        start.elapsed()
    };
    (scratch, server.stop_for_stats(), took)
}

#[test]
fn mkfs_on_a_raid10_of_four_1900_gb_disks_discards_each_member_as_often_as_the_array() {
    let (_scratch, mirrored, on_mirrors) = mkfs(Level::Raid10);
    let (_scratch, striped, on_stripes) = mkfs(Level::Raid0);
    println!("mkfs.xfs took {on_mirrors:?} on the RAID10 and {on_stripes:?} on the RAID0");
    for (stats, copies) in [(mirrored, 2), (striped, 1)] {
        // mkfs.xfs discards 2 GiB at a time, and waits for each. What punches holes into a file has to read as zeros.
        let discards = |node: &str| stats.count(node, "discards") + stats.count(node, "write_zeroes");
        let asked = discards("md/d");
        let size = (BYTES - (130 << 20)) * u64::from(MEMBERS) / copies;
        // A few more where it lays out its log.
        assert!((1..=size.div_ceil(2 << 30) + 8).contains(&asked), "{asked} discards of the array");
        for member in 0..MEMBERS {
            let name = format!("d{member}.img");
            let got = discards(&name);
            // One for each of the array's, and not more than a few for the one at its end, which is not whole rows.
            assert!((1..=asked + 3).contains(&got), "{name}: {got} discards for {asked} of the array");
            assert!(stats.count(&name, "discard_bytes") >= size * copies / u64::from(MEMBERS));
            assert_eq!(stats.count(&name, "zeroes_written"), 0);
        }
    }
}

#[test]
fn a_discard_of_4_gib_at_any_place_is_at_most_three_on_each_member() {
    let scratch = Scratch::new();
    let disks = array(&scratch, "d", Level::Raid10, MEMBERS, BYTES);
    let socket = scratch.at("nbd.sock");
    let mut command = scratch.blockwork(["serve", "md/d", "--stats", "--json", "--nbd"]);
    let server = Server::start(command.arg(format!("unix:{socket}")).arg("--disk").args(disks));
    // Neither end is at a chunk: a whole range, and a piece of a chunk at either end.
    python(&format!(
        "import nbd\nh = nbd.NBD()\nh.connect_uri('nbd+unix:///md/d?socket={socket}')\n\
         h.trim((4 << 30) - 65536, (700 << 30) + 12288)\n"
    ));
    let stats = server.stop_for_stats();
    assert_eq!(stats.count("md/d", "discards"), 1);
    let on_members: u64 = (0..MEMBERS).map(|n| stats.count(&format!("d{n}.img"), "discards")).sum();
    assert!((4..=8).contains(&on_members), "{on_members} discards on the members");
    let bytes: u64 = (0..MEMBERS).map(|n| stats.count(&format!("d{n}.img"), "discard_bytes")).sum();
    assert_eq!(bytes, 2 * ((4 << 30) - 65536));
}

#[test]
fn sequential_reads_of_1_mib_use_all_members_alike() {
    const LEN: u64 = 64 << 20;
    let scratch = Scratch::new();
    let disks = array(&scratch, "d", Level::Raid10, MEMBERS, 1 << 30);
    let socket = scratch.at("nbd.sock");
    let mut command = scratch.blockwork(["serve", "md/d", "--read-only", "--stats", "--json", "--nbd"]);
    let server = Server::start(command.arg(format!("unix:{socket}")).arg("--disk").args(disks));
    python(&format!(
        "import nbd\nh = nbd.NBD()\nh.connect_uri('nbd+unix:///md/d?socket={socket}')\n\
         for at in range(0, {LEN}, 1 << 20): h.pread(1 << 20, at)\n"
    ));
    let stats = server.stop_for_stats();
    let share = LEN / u64::from(MEMBERS);
    for member in 0..MEMBERS {
        let bytes = stats.count(&format!("d{member}.img"), "read_bytes");
        // More than its share only by what is read ahead where turns end.
        assert!((share..share * 5 / 4).contains(&bytes), "d{member}.img: {bytes} bytes of {share}");
    }
}

#[test]
fn an_uneven_mirror_on_disks_of_4096_byte_blocks_is_synced_and_had_to_its_last_sector() {
    let scratch = Scratch::new();
    let noise = ["a", "b"].map(|name| scratch.noise(name, 12 << 20, 1 + u64::from(name == "b")));
    let loops =
        ["a", "b"].map(|name| Loop::with(&["--direct-io=on", "--sector-size=4096"], &scratch.at(name)));
    let [a, b] = [&*loops[0].device, &*loops[1].device];
    let size = 9217 << 10;
    let create =
        ["md", "create", "--level=1", "--raid-devices=2", "--name=d", "--size=9217", "--data-offset=1M"];
    run(&mut scratch.blockwork(create.into_iter().chain([a, b])));
    let server = scratch.serve(["md/d", "--disk", a, b]);
    let said = run(&mut scratch.blockwork(["md", "wait", "md/d"]));
    assert!(said.contains("all members are in sync"), "{said}");
    python(&format!(
        "h = connect({:?})\n\
         assert h.get_size() == {size}\n\
         last = h.pread(1024, {size} - 1024)\n\
         h.pwrite(last[512:] + last[:512], {size} - 1024, nbd.CMD_FLAG_FUA)\n\
         assert h.pread(4096, {size} - 4096)[3072:] == last[512:] + last[:512]\n",
        scratch.uri("")
    ));
    let said = run(&mut scratch.blockwork(["md", "check", "md/d", "--wait"]));
    assert!(said.contains("mismatch_cnt 0") && said.contains("all members are in sync"), "{said}");
    server.stop();
    let [one, other] = ["a", "b"].map(|name| scratch.read(name)[1 << 20..][..size].to_vec());
    assert!(one == other, "the mirrors differ");
    let mut expected = noise[0][1 << 20..][..size].to_vec();
    expected[size - 1024..].rotate_left(512);
    assert!(one == expected, "it is not what the first mirror had");
}

#[test]
fn a_linear_array_whose_members_meet_in_the_middle_of_a_block_is_refused() {
    let scratch = Scratch::new();
    let serve = |bytes: u64| {
        let disks = array(&scratch, "d", Level::Linear, 2, bytes);
        File::options().write(true).open(scratch.path(&disks[1])).unwrap().set_len(bytes + 4096).unwrap();
        let looped = Loop::with(&["--direct-io=on", "--sector-size=4096"], &scratch.at(&disks[1]));
        (disks[0].clone(), looped)
    };
    let (first, second) = serve((64 << 20) + 512);
    let said = scratch.refused(["md/d", "--disk", &first, &second.device]);
    for word in ["md/d is put together of pieces", "in the middle of one of its blocks of 4096 bytes"] {
        assert!(said.contains(word), "{said}");
    }
    drop(second);
    let (first, second) = serve(64 << 20);
    let server = scratch.serve(["md/d", "--disk", &first, &second.device]);
    python(&format!(
        "h = connect({:?})\nhalf = h.get_size() // 2\ndata = bytes(range(256)) * 32\n\
         h.pwrite(data, half - 4096)\nassert h.pread(8192, half - 4096) == data\n",
        scratch.uri("")
    ));
    server.stop();
}

/// A mirror whose last block of 4096 bytes is only begun on the other disk, `b`, which has blocks of 512: that is all of its file, or a
/// partition in which somebody else's data follow.
fn check_two_block_sizes(is_partition: bool) {
    const MIB: usize = 1 << 20;
    let scratch = Scratch::new();
    let size = 9217 << 10;
    let noise = ["a", "b"].map(|name| scratch.noise(name, MIB + size, 1 + u64::from(name == "b")));
    let create =
        ["md", "create", "--level=1", "--raid-devices=2", "--name=d", "--size=9217", "--data-offset=1M"];
    run(&mut scratch.blockwork(create.into_iter().chain(["a", "b"])));
    let neighbour = if is_partition { scratch.noise("neighbour", MIB, 3) } else { Vec::new() };
    let start = if is_partition { MIB } else { 0 };
    if is_partition {
        let mut table = vec![0; MIB];
        table[446 + 4] = 0xfd;
        let [first, count] = [MIB, MIB + size].map(|bytes| u32::try_from(bytes / 512).unwrap().to_le_bytes());
        table[446 + 8..446 + 16].copy_from_slice(&[first, count].concat());
        table[510..512].copy_from_slice(&[0x55, 0xaa]);
        scratch.write("b", [table, scratch.read("b"), neighbour.clone()].concat());
    }
    File::options().write(true).open(scratch.path("a")).unwrap().set_len(12 << 20).unwrap();
    let looped = Loop::with(&["--direct-io=on", "--sector-size=4096"], &scratch.at("a"));
    let server = scratch.serve(["md/d", "--disk", &looped.device, "b"]);
    let said = run(&mut scratch.blockwork(["md", "wait", "md/d"]));
    assert!(said.contains("all members are in sync"), "{said}");
    python(&format!(
        "h = connect({:?})\nh.pwrite(bytes([7]) * 512, {size} - 512)\nh.flush()\n\
         for _ in range(4): assert h.pread(512, {size} - 512) == bytes([7]) * 512\n",
        scratch.uri("")
    ));
    let said = run(&mut scratch.blockwork(["md", "check", "md/d", "--wait"]));
    assert!(said.contains("mismatch_cnt 0") && said.contains("all members are in sync"), "{said}");
    server.stop();
    let mut expected = noise[0][MIB..].to_vec();
    expected[size - 512..].fill(7);
    let b = &scratch.read("b")[start + MIB..];
    assert!(b[..size] == expected, "it is not what the first mirror had, to its own end");
    assert!(b[size..] == neighbour, "what follows the member was written to");
    assert!(scratch.read("a")[MIB..][..size] == expected);
}

#[test]
fn an_uneven_mirror_of_disks_with_blocks_of_two_sizes_is_had_to_the_end_of_the_smaller_disk() {
    check_two_block_sizes(false);
}

#[test]
fn an_uneven_mirror_writes_nothing_behind_a_partition_with_smaller_blocks() {
    check_two_block_sizes(true);
}

#[test]
fn writes_in_order_to_a_raid5_read_the_rest_of_a_row_once_and_the_statistics_say_so() {
    let scratch = Scratch::new();
    let disks: Vec<_> = ["a", "b", "c", "d"].map(|name| scratch.sparse(name, 32 << 20)).into();
    let create =
        ["md", "create", "--level", "5", "-n", "4", "--chunk", "64K", "--assume-clean", "--name", "data"];
    run(scratch.blockwork(create).args(&disks));
    let server = scratch.serve(["--disk", "a", "b", "c", "d", "md/data", "--stats", "--json"]);
    // One by one, so nothing of this is chance: 32 rows, each of 3 * 16 pieces.
    let uri = scratch.uri("md/data");
    python(&format!(
        "h = connect('{uri}')
for at in range(0, 32 * 3 * 65536, 4096):
    h.pwrite(bytes([at >> 12 & 255]) * 4096, at)
# A row as a whole.
h.pwrite(b'x' * 3 * 65536, 100 * 3 * 65536)
"
    ));
    let stats = server.stop_for_stats();
    let rows = ["rows_read", "rows_known", "rows_whole"].map(|counter| stats.count("md/data", counter));
    assert_eq!(rows, [32 * 16, 2 * 32 * 16, 1]);
    let read: u64 = ["a", "b", "c", "d"].map(|name| stats.count(name, "read_bytes")).iter().sum();
    assert_eq!(read, 32 * 2 * 65536, "of each row, what was not written with the first member's part");
}

//! `serve --table`: stacks of linear, striped, raid, zero and error targets, read and written by real clients and compared
//! with bytes that the test has put together by hand from the members' files; and tables that are wrong, each refused
//! with the file and the line.

use crate::support::fs::Loop;
use crate::support::nbd::python;
use crate::support::{Scratch, noise, run, tool, until};

const SECTOR: usize = 512;
const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// All bytes of an export, as nbdcopy reads them.
fn content(scratch: &Scratch, export: &str) -> Vec<u8> {
    run(tool("nbdcopy").args(["--requests=32", &scratch.uri(export), &scratch.at("copied")]));
    scratch.read("copied")
}

/// Writes a file to an export.
fn fill(scratch: &Scratch, export: &str, content: &[u8]) {
    let from = scratch.write("to-be-written", content);
    run(tool("nbdcopy").args(["--allocated", "--flush", &from, &scratch.uri(export)]));
}

#[test]
fn linear_targets_are_ranges_of_their_disks_in_order() {
    let scratch = Scratch::new();
    let (a, b) = (scratch.noise("a.img", 4 * MIB, 1), scratch.noise("b.img", 4 * MIB, 2));
    // 1 MiB of b from 64 KiB on, the last 512 KiB of a, one sector of b, 7 sectors of a.
    let table = scratch.write(
        "joined.table",
        "# a comment\n0 2048 linear b.img 128\n2048 1024 linear a.img 7168\n\n3072 1 linear b.img 5 # one\n3073 7 linear \
         a.img 0\n",
    );
    let server = scratch.serve(["--table", &table]);
    let expected = [
        &b[64 * KIB..64 * KIB + MIB],
        &a[a.len() - 512 * KIB..],
        &b[5 * SECTOR..6 * SECTOR],
        &a[..7 * SECTOR],
    ]
    .concat();
    let list = run(tool("nbdinfo").args(["--list", "--json", &scratch.uri("")]));
    assert!(
        list.contains("\"dm/joined\"") && !list.contains("disk/a.img"),
        "a table alone is served alone: {list}"
    );
    assert!(content(&scratch, "dm/joined") == expected);
    // Across all borders at once, and nothing beside.
    let new = noise(expected.len(), 3);
    fill(&scratch, "dm/joined", &new);
    assert!(content(&scratch, "dm/joined") == new);
    server.stop_quietly();
    let (mut a_now, mut b_now) = (a, b);
    let at = a_now.len() - 512 * KIB;
    b_now[64 * KIB..64 * KIB + MIB].copy_from_slice(&new[..MIB]);
    a_now[at..].copy_from_slice(&new[MIB..MIB + 512 * KIB]);
    b_now[5 * SECTOR..6 * SECTOR].copy_from_slice(&new[3072 * SECTOR..3073 * SECTOR]);
    a_now[..7 * SECTOR].copy_from_slice(&new[3073 * SECTOR..]);
    assert!(scratch.read("a.img") == a_now);
    assert!(scratch.read("b.img") == b_now);
}

#[test]
fn a_striped_target_takes_chunks_of_its_members_in_turn() {
    let scratch = Scratch::new();
    const CHUNK: usize = 24 * SECTOR; // no power of two
    const PER_MEMBER: usize = 80 * CHUNK;
    let members: Vec<Vec<u8>> =
        (0u64..3).map(|i| scratch.noise(&format!("{i}.img"), 8 * SECTOR + PER_MEMBER, i + 1)).collect();
    let sectors = 3 * PER_MEMBER / SECTOR;
    let table = scratch.write(
        "stripes.table",
        format!(
            "stripes: 0 {sectors} striped 3 24 {} 8 {} 0 {} 4\n",
            scratch.at("0.img"),
            scratch.at("1.img"),
            "2.img"
        ),
    );
    let offsets = [8 * SECTOR, 0, 4 * SECTOR];
    let server = scratch.serve(["--table", &table]);
    let mut expected: Vec<u8> = Vec::new();
    for chunk in 0..3 * 80 {
        let (member, nr) = (chunk % 3, chunk / 3);
        let at = offsets[member] + nr * CHUNK;
        expected.extend(&members[member][at..at + CHUNK]);
    }
    assert!(content(&scratch, "dm/stripes") == expected);
    let new = noise(expected.len(), 9);
    fill(&scratch, "dm/stripes", &new);
    server.stop_quietly();
    let mut now = members;
    for (chunk, bytes) in new.chunks(CHUNK).enumerate() {
        let (member, nr) = (chunk % 3, chunk / 3);
        let at = offsets[member] + nr * CHUNK;
        now[member][at..at + CHUNK].copy_from_slice(bytes);
    }
    for (i, now) in now.iter().enumerate() {
        assert!(
            scratch.read(&format!("{i}.img")) == *now,
            "member {i}, what lies outside the stripes included"
        );
    }
}

/// Chunks of the arrays below, bytes.
const CHUNK: usize = 64 * KIB;

/// Serves a RAID10 of four files of 1 MiB, writes all of it, and reads it back; gives the content and the files.
fn raid10(parameters: &str) -> (Vec<u8>, Vec<Vec<u8>>) {
    let scratch = Scratch::new();
    for name in ["a.img", "b.img", "c.img", "d.img"] {
        scratch.noise(name, MIB, 1);
    }
    let count = parameters.split_whitespace().count() + 1;
    let line = format!("0 4096 raid raid10 {count} 128 {parameters} 4 - a.img - b.img - c.img - d.img\n");
    let server = scratch.serve(["--table", &scratch.write("array.table", line)]);
    let new = noise(2 * MIB, 2);
    fill(&scratch, "dm/array", &new);
    assert!(content(&scratch, "dm/array") == new);
    server.stop_quietly();
    (new, ["a.img", "b.img", "c.img", "d.img"].map(|name| scratch.read(name)).into())
}

/// The `row`-th chunk of a member.
fn row(member: &[u8], row: usize) -> &[u8] {
    &member[row * CHUNK..(row + 1) * CHUNK]
}

#[test]
fn near_copies_of_a_raid_target_lie_beside_each_other() {
    let (content, members) = raid10("nosync");
    for (nr, chunk) in content.chunks(CHUNK).enumerate() {
        let first = nr % 2 * 2;
        for member in &members[first..first + 2] {
            assert!(row(member, nr / 2) == chunk, "chunk {nr}");
        }
    }
}

#[test]
fn far_copies_of_a_raid_target_stay_in_their_set_as_in_the_kernel() {
    let half = MIB / CHUNK / 2;
    let (content, members) = raid10("raid10_copies 2 raid10_format far nosync");
    for (nr, chunk) in content.chunks(CHUNK).enumerate() {
        let (first, at) = (nr % 4, nr / 4);
        // Sets of two devices: a and b, c and d.
        assert!(
            row(&members[first], at) == chunk && row(&members[first ^ 1], half + at) == chunk,
            "chunk {nr}"
        );
    }
    let (content, members) = raid10("raid10_format far raid10_use_near_sets");
    for (nr, chunk) in content.chunks(CHUNK).enumerate() {
        let (first, at) = (nr % 4, nr / 4);
        assert!(
            row(&members[first], at) == chunk && row(&members[(first + 1) % 4], half + at) == chunk,
            "chunk {nr}"
        );
    }
}

#[test]
fn a_raid_target_does_without_a_device() {
    let scratch = Scratch::new();
    let mut mirror = scratch.noise("b.img", MIB, 3);
    let line = "0 2048 raid raid1 2 0 nosync 2 - - - b.img\n";
    let server = scratch.serve(["--table", &scratch.write("half.table", line)]);
    assert!(content(&scratch, "dm/half") == mirror);
    mirror = noise(MIB, 4);
    fill(&scratch, "dm/half", &mirror);
    server.stop_quietly();
    assert!(scratch.read("b.img") == mirror);
}

/// Each byte is the sum of those of the others.
fn sum(members: &[&[u8]]) -> Vec<u8> {
    let mut sum = vec![0; members[0].len()];
    members.iter().for_each(|member| sum.iter_mut().zip(*member).for_each(|(sum, byte)| *sum ^= byte));
    sum
}

/// Three files of 1 MiB that fit no parity, and a table of a raid target of them.
fn three(scratch: &Scratch, kind: &str, parameters: &str, devices: [&str; 3]) -> String {
    let count = parameters.split_whitespace().count() + 1;
    let [a, b, c] = devices;
    let line = format!("0 4096 raid {kind} {count} 128 {parameters} 3 - {a} - {b} - {c}\n");
    scratch.write("array.table", line)
}

/// Where the parity of a row is, and where its first data.
type Places = fn(usize) -> (usize, usize);

const THREE: [&str; 3] = ["a.img", "b.img", "c.img"];

#[test]
fn a_raid_target_with_a_parity_keeps_it_where_its_layout_has_it() {
    let layouts: [(&str, Places); 4] = [
        ("raid4", |_| (0, 1)),
        ("raid5_n", |_| (2, 0)),
        ("raid5_ls", |row| (2 - row % 3, (3 - row % 3) % 3)),
        ("raid5_ra", |row| (row % 3, usize::from(row % 3 == 0))),
    ];
    for (kind, place) in layouts {
        let scratch = Scratch::new();
        for (seed, name) in (1..).zip(THREE) {
            scratch.noise(name, MIB, seed);
        }
        let server =
            scratch.serve(["--table", &three(&scratch, kind, "region_size 1024 stripe_cache 512", THREE)]);
        let new = noise(2 * MIB, 9);
        fill(&scratch, "dm/array", &new);
        assert!(content(&scratch, "dm/array") == new, "{kind}");
        server.stop_quietly();
        let members = THREE.map(|name| scratch.read(name));
        for (nr, data) in new.chunks(2 * CHUNK).enumerate() {
            let (parity, first) = place(nr);
            let second = 3 - parity - first;
            assert!(row(&members[first], nr) == &data[..CHUNK], "{kind}, row {nr}");
            assert!(row(&members[second], nr) == &data[CHUNK..], "{kind}, row {nr}");
            assert!(row(&members[parity], nr) == sum(&[&data[..CHUNK], &data[CHUNK..]]), "{kind}, row {nr}");
        }
    }
}

#[test]
fn a_parity_of_a_raid_target_is_made_unless_it_is_said_to_fit_and_makes_up_for_a_device() {
    let scratch = Scratch::new();
    for (seed, name) in (1..).zip(THREE) {
        scratch.noise(name, MIB, seed);
    }
    let members = || THREE.map(|name| scratch.read(name));
    let fits = || {
        let members = members();
        sum(&[&members[0], &members[1], &members[2]]).iter().all(|byte| *byte == 0)
    };
    let before = members();
    let server = scratch.serve(["--table", &three(&scratch, "raid5_ls", "nosync", THREE)]);
    let data = content(&scratch, "dm/array");
    server.stop_quietly();
    assert!(members() == before, "nothing was written");

    let server = scratch.serve(["--table", &three(&scratch, "raid5_ls", "sync", THREE)]);
    until("the parity is made", fits);
    assert!(content(&scratch, "dm/array") == data, "data are as they were");
    server.stop_quietly();

    let idle = scratch.read("b.img");
    // Without a device, and no word of whether the parity fits: it is taken as it is, as by Linux.
    let server = scratch.serve(["--table", &three(&scratch, "raid5_ls", "", ["a.img", "-", "c.img"])]);
    assert!(content(&scratch, "dm/array") == data);
    let new = noise(2 * MIB, 4);
    fill(&scratch, "dm/array", &new);
    assert!(content(&scratch, "dm/array") == new);
    server.stop_quietly();
    assert!(scratch.read("b.img") == idle && !fits());

    let server = scratch.serve(["--table", &three(&scratch, "raid5_ls", "rebuild 1", THREE)]);
    until("the device is rebuilt", fits);
    assert!(content(&scratch, "dm/array") == new);
    server.stop_quietly();
}

#[test]
fn a_raid_target_with_two_parities_does_without_two_devices() {
    let names = ["a.img", "b.img", "c.img", "d.img", "e.img"];
    let scratch = Scratch::new();
    for (seed, name) in (1..).zip(names) {
        scratch.noise(name, MIB, seed);
    }
    let table = |missing: &[usize]| {
        let device =
            |nth: usize| if missing.contains(&nth) { "- -".into() } else { format!("- {}", names[nth]) };
        let devices: Vec<String> = (0..names.len()).map(device).collect();
        scratch.write("array.table", format!("0 6144 raid raid6_zr 1 128 5 {}\n", devices.join(" ")))
    };
    let server = scratch.serve(["--table", &table(&[])]);
    let mut new = noise(3 * MIB, 9);
    fill(&scratch, "dm/array", &new);
    server.stop_quietly();
    for (seed, missing) in [(10, [0, 1]), (11, [1, 4]), (12, [2, 3])] {
        let server = scratch.serve(["--table", &table(&missing)]);
        assert!(content(&scratch, "dm/array") == new, "without {missing:?}");
        server.stop_quietly();
        // All is there again, and is written again.
        let server = scratch.serve(["--table", &table(&[])]);
        new = noise(3 * MIB, seed);
        fill(&scratch, "dm/array", &new);
        server.stop_quietly();
    }
    let server = scratch.refused(["--table", &table(&[0, 2, 4])]);
    assert!(server.contains("too many members are missing: [0, 2, 4] of 5"), "{server}");
}

/// Discards that each of four null disks gets for one of 1 MiB, from 64 KiB on, of a RAID10 of them with chunks of 64 KiB.
fn discards(settings: &[&str]) -> Vec<u64> {
    let scratch = Scratch::new();
    // The same disk under four names: one name would be one disk.
    let disks = ["null:1G", "null:1024M", "null:1048576K", "null:1073741824"];
    let [a, b, c, d] = disks;
    let line = format!("0 4194304 raid raid10 2 128 nosync 4 - {a} - {b} - {c} - {d}\n");
    let table = scratch.write("array.table", line);
    let all = ["--table", &table, "--workers", "1", "--stats", "--json"];
    let server = scratch.serve(all.iter().chain(settings));
    python(&format!("h = connect({:?})\nh.trim(1 << 20, 64 << 10)\n", scratch.uri("dm/array")));
    let stats = server.stop_for_stats();
    disks.map(|disk| stats.count(disk, "discards")).into()
}

#[test]
fn the_discard_limit_of_an_array_cuts_as_linux_did() {
    assert_eq!(discards(&[]), [1; 4]);
    assert_eq!(discards(&["--set", "raid:discard_max_bytes=65536"]), [8; 4]);
    assert_eq!(
        discards(&["--set", "dm/array:discard_max_bytes=262144"]),
        [8; 4],
        "pieces are cut at chunks too"
    );
    assert_eq!(discards(&["--set", "leaf:discard_max_bytes=262144"]), [2; 4]);
}

#[test]
fn a_setting_that_no_layer_takes_is_refused() {
    let scratch = Scratch::new();
    let table = scratch.write("t.table", "0 2048 raid raid1 2 0 nosync 2 - null:1M - null:1024K\n");
    for (setting, what) in [
        ("md:nomerges=2", "md has no setting \"nomerges\"; there are: discard_max_bytes, sync_speed_min"),
        ("md:discard_max_bytes=4096", "no device of that kind or name is assembled"),
        ("vg/lv:discard_max_bytes=4096", "no device of that kind or name is assembled"),
        ("raid:discard_max_bytes=99999999999999999999", "expected a whole number"),
        ("disk/d.img:nr_requests=64", "of one, as an option of it (--disk DISK,nr_requests=64)"),
    ] {
        let said = scratch.misused(["--table", &table, "--set", setting]);
        assert!(said.contains(&format!("--set {setting}: ")) && said.contains(what), "{said}");
    }
}

#[test]
fn tables_stack_on_tables_and_on_partitions() {
    let scratch = Scratch::new();
    let disk = scratch.sparse("disk.img", 64 << 20);
    run(tool("sgdisk").args(["--clear", "--new=1:2048:+16M", "--new=2:0:+16M", &disk]));
    // Two partitions striped, a linear piece of that, and between two of those a hole.
    let table = scratch.write(
        "stack.table",
        "both: 0 65536 striped 2 128 disk/disk.img/1 0 disk/disk.img/2 0\n\
         piece: 0 1000 linear dm/both 100\n\
         top: 0 1000 linear dm/piece 0\ntop: 1000 500 zero\ntop: 1500 500 linear /dev/mapper/piece 500\n",
    );
    let server = scratch.serve(["--disk", &disk, "--table", &table]);
    let both = noise(32 * MIB, 4);
    fill(&scratch, "dm/both", &both);
    let at = |sector: usize| &both[sector * SECTOR..];
    let expected = [&at(100)[..1000 * SECTOR], &vec![0; 500 * SECTOR], &at(600)[..500 * SECTOR]].concat();
    assert!(content(&scratch, "dm/top") == expected);
    // The first chunk is the first of partition 1, the second the first of partition 2.
    server.stop_quietly();
    let disk = scratch.read("disk.img");
    assert!(disk[MIB..MIB + 64 * KIB] == both[..64 * KIB]);
    assert!(disk[17 * MIB..17 * MIB + 64 * KIB] == both[64 * KIB..128 * KIB]);
    assert!(disk[MIB + 64 * KIB..MIB + 128 * KIB] == both[128 * KIB..192 * KIB]);
}

#[test]
fn a_zero_target_reads_zeros_and_swallows_writes() {
    let scratch = Scratch::new();
    let table = scratch.write("nothing.table", "0 2048 zero\n");
    let server = scratch.serve(["--table", &table]);
    fill(&scratch, "dm/nothing", &noise(MIB, 5));
    assert!(content(&scratch, "dm/nothing") == vec![0; MIB]);
    server.stop_quietly();
}

#[test]
fn an_error_target_fails_what_touches_it_and_nothing_else() {
    let scratch = Scratch::new();
    let good = scratch.noise("a.img", 2 * MIB, 6);
    let table =
        scratch.write("holed.table", "0 2048 linear a.img 0\n2048 8 error\n2056 2040 linear a.img 2056\n");
    let server = scratch.serve(["--table", &table]);
    let said = python(&format!(
        "h = connect({:?})\n\
         bad = 2048 * 512\n\
         for call in [lambda: h.pread(4096, bad), lambda: h.pread(512, bad + 7 * 512), lambda: h.pread(8192, bad - 4096),\n\
             lambda: h.pwrite(b'x' * 512, bad), lambda: h.pwrite(b'x' * 65536, bad - 32768), lambda: h.trim(4096, bad),\n\
             lambda: h.zero(4096, bad), lambda: h.pwrite(b'x' * 512, bad, nbd.CMD_FLAG_FUA)]:\n\
         \x20   print(refused(call) == errno.EIO)\n\
         h.flush()\n\
         sys.stdout.flush()\n\
         os.write(1, h.pread(4096, bad - 4096) == open({:?}, 'rb').read()[bad - 4096:bad] and b'before' or b'')\n\
         h.pwrite(b'y' * 512, bad + 4096, nbd.CMD_FLAG_FUA)\n\
         h.shutdown()\n",
        scratch.uri("dm/holed"),
        scratch.at("a.img"),
    ));
    assert_eq!(said.lines().filter(|line| *line == "True").count(), 8, "{said}");
    assert_eq!(said.lines().count(), 9, "{said}");
    // While it fails for one, everybody else's work goes on: each error is its own request's.
    assert!(server.stop().status.success());
    let now = scratch.read("a.img");
    assert!(now[2048 * SECTOR..2056 * SECTOR] == good[2048 * SECTOR..2056 * SECTOR]);
    assert!(now[2056 * SECTOR..2057 * SECTOR] == *vec![b'y'; SECTOR]);
}

/// A mirror of an array with a parity and a file: what neither of the array's own can read, nor be computed, the file has.
#[test]
fn what_an_array_in_a_mirror_cannot_read_the_other_copy_has() {
    let scratch = Scratch::new();
    for name in ["a.img", "b.img", "c.img"] {
        scratch.sparse(name, MIB as u64);
    }
    scratch.sparse("d.img", 2 * MIB as u64);
    let stack = |devices: [&str; 2], copies: [&str; 2]| {
        let ([a, b], [one, other]) = (devices, copies);
        format!(
            "five: 0 4096 raid raid5_ls 2 128 nosync 3 - {a} - {b} - c.img\n\
             both: 0 4096 raid raid1 2 0 nosync 2 - {one} - {other}\n"
        )
    };
    let plain = stack(["a.img", "b.img"], ["dm/five", "d.img"]);
    let table = scratch.write("plain.table", plain);
    let server = scratch.serve(["--table", &table, "dm/both"]);
    let data = noise(2 * MIB, 21);
    fill(&scratch, "dm/both", &data);
    server.stop_quietly();

    let holed = |name: &str, from: u64| {
        let behind = from + 8;
        let rest = 2048 - behind;
        format!(
            "{name}: 0 {from} linear {name}.img 0\n{name}: {from} 8 error\n{name}: {behind} {rest} linear {name}.img {behind}\n"
        )
    };
    // In one row of chunks of 128 sectors, once in the same place, once in one that overlaps; then in two rows, where each is computed,
    // until the member that cannot be mended is given up.
    for (a, b) in [(520, 520), (512, 516), (520, 700)] {
        let holes = holed("a", a) + &holed("b", b);
        for copies in [["dm/five", "d.img"], ["d.img", "dm/five"]] {
            let lines = holes.clone() + &stack(["dm/a", "dm/b"], copies);
            let table = scratch.write("holed.table", lines);
            let server = scratch.serve(["--table", &table, "dm/both"]);
            for _ in 0..2 {
                assert!(content(&scratch, "dm/both") == data, "{a} {b} {copies:?}");
            }
            assert!(server.stop().status.success());
        }
        if a / 128 != b / 128 {
            continue;
        }
        // Alone, the array cannot.
        let table = scratch.write("alone.table", holes + &stack(["dm/a", "dm/b"], ["dm/five", "d.img"]));
        let server = scratch.serve(["--table", &table, "dm/five"]);
        let script = format!(
            "h = connect({:?})\n\
             fails = 0\n\
             for at in range(0, h.get_size(), 4096):\n\
             \x20   fails += refused(lambda: h.pread(4096, at)) == errno.EIO\n\
             print(fails > 0)\n",
            scratch.uri("dm/five")
        );
        assert_eq!(python(&script).trim(), "True", "{a} {b}");
        assert!(server.stop().status.success());
    }
}

/// A table that must be refused, and what is said about it.
fn refused(lines: &str) -> String {
    let scratch = Scratch::new();
    scratch.sparse("a.img", 1 << 20); // 2048 sectors
    scratch.sparse("b.img", 1 << 20);
    let table = scratch.write("bad.table", lines);
    let said = scratch.refused(["--table", &table]);
    assert!(!scratch.path("refused").exists(), "no socket is left behind");
    said
}

#[test]
fn a_table_that_is_wrong_is_refused_with_file_and_line() {
    for (lines, line, what) in [
        (
            "0 3 striped 2 8 a.img 0 b.img 0\n",
            1,
            "length is 3, expected a multiple of the number of stripes, 2",
        ),
        ("0 24 striped 2 8 a.img 0 b.img 0\n", 1, "length is 24, expected a multiple of 2 stripes x chunk 8"),
        ("0 0 zero\n", 1, "length is 0, expected at least 1 sector"),
        ("0 18446744073709551615 zero\n", 1, "length is"),
        ("0 100 zero\n\n# gap\n200 100 zero\n", 4, "start is 200, expected 100"),
        ("0 100 zero\n50 100 zero\n", 2, "start is 50, expected 100"),
        ("8 100 zero\n", 1, "start is 8, expected 0"),
        ("0 100 linear\n", 1, "device is missing"),
        ("0 100 linear a.img\n", 1, "offset is missing"),
        ("0 100 linear a.img 0 7\n", 1, "argument is \"7\""),
        ("0 16 striped 2 8 a.img 0\n", 1, "device is missing"),
        ("0 8 zero\n8 8 snapshot a.img b.img P 8\n", 2, "start is 8, expected 0: a snapshot's sectors"),
        (
            "0 8 raid raid1 1 0 2 a.img b.img - c.img\n",
            1,
            "metadata device is \"a.img\", expected -, for none",
        ),
        (
            "0 20 raid raid10 1 8 2 - a.img - b.img\n",
            1,
            "whole chunks of its devices make 16 sectors, and it has 20",
        ),
        (
            "0 24 raid raid5_ls 1 8 3 - a.img - b.img - a.img\n",
            1,
            "whole chunks of its devices make 16 sectors, and it has 24",
        ),
        ("0 8 raid raid6_zr 2 8 nosync 4 - - - - - - - -\n", 1, "RAID parameter is nosync of a raid6_zr"),
        ("0 8 raid raid1 1 0 2 - - - -\n", 1, "too many members are missing: [0, 1] of 2"),
        (
            "0 8 zero\n8 8 frob\n",
            2,
            "target is \"frob\", expected linear, striped, delay, raid, zero, error, snapshot-origin, snapshot, snapshot-merge, thin-pool or thin",
        ),
        ("0 100 linear dm/other 0\n", 1, "\"dm/other\""),
        ("x: 0 8 linear dm/x 0\n", 1, "itself"),
        ("x: 0 8 zero\ny: 0 16 linear dm/x 0\n", 2, "expected at most 8, the size of x"),
        ("x: 0 8 zero\ny: 0 8 zero\nx: 8 8 zero\n", 3, "\"x\" again"),
        ("0 eight zero\n", 1, "length is \"eight\""),
        ("0 8 z\x1bro\n", 1, "\"z\\u{1b}ro\""),
        ("\n# only words\n", 2, "table is empty"),
    ] {
        let said = refused(lines);
        assert!(said.contains("bad.table"), "{lines:?}: {said}");
        assert!(said.contains(&format!("line {line}: ")), "{lines:?}: {said}");
        assert!(said.contains(what), "{lines:?}: {said}");
        assert_eq!(said.lines().count(), 1, "{lines:?}: {said}");
        assert_eq!(said.matches(what).count(), 1, "it is said once: {said}");
    }
}

#[test]
fn a_table_over_disks_of_two_block_sizes_is_whole_blocks_of_the_larger_or_refused() {
    let scratch = Scratch::new();
    scratch.sparse("coarse.img", MIB as u64);
    scratch.noise("fine.img", 1001 * SECTOR, 1);
    let looped = Loop::with(&["--direct-io=on", "--sector-size=4096"], &scratch.at("coarse.img"));
    let table = |sectors: usize| {
        let lines = format!("0 1000 linear {} 0\n1000 {sectors} linear fine.img 0\n", looped.device);
        scratch.write("t.table", lines)
    };
    // What a client at the end would read and write of the last block is not on the second disk.
    let said = scratch.refused(["--table", &table(1001)]);
    for word in ["dm/t", "ends at sector 2001", "in the middle of one of its blocks of 4096 bytes"] {
        assert!(said.contains(word), "{said}");
    }
    let server = scratch.serve(["--table", &table(1000)]);
    let new = noise(2000 * SECTOR, 2);
    fill(&scratch, "dm/t", &new);
    assert!(content(&scratch, "dm/t") == new);
    server.stop_quietly();
    assert!(scratch.read("fine.img")[..1000 * SECTOR] == new[1000 * SECTOR..]);
}

#[test]
fn a_disk_that_is_too_small_or_missing_is_named_with_the_line_that_wants_it() {
    let said = refused("0 8 zero\n8 100 linear a.img 2000\n");
    assert!(
        said.contains("bad.table, line 2: sectors 2000 to 2100 of a.img are asked for, which has 2048"),
        "{said}"
    );
    let said = refused("0 4096 striped 2 8 a.img 0 b.img 8\n");
    assert!(said.contains("bad.table, line 1: stripe 1 needs sectors 8 to 2056"), "{said}");
    let said = refused("0 8 zero\n8 8 linear missing.img 0\n");
    assert!(said.contains("bad.table, line 2: missing.img: open: No such file"), "{said}");
}

#[test]
fn a_table_file_that_is_missing_or_no_text_is_named() {
    let scratch = Scratch::new();
    let said = scratch.refused(["--table", "nowhere.table"]);
    assert!(said.contains("nowhere.table: No such file"), "{said}");
    let binary = scratch.write("binary.table", noise(4096, 7));
    let said = scratch.refused(["--table", &binary]);
    assert!(said.contains("binary.table"), "{said}");
}

#[test]
fn devices_upon_more_devices_than_any_io_can_go_through_are_refused() {
    let stack = |levels: usize, lines: &dyn Fn(usize) -> String| -> String {
        (1..levels).map(lines).fold("d0: 0 1024 linear a.img 0\n".to_owned(), |all, more| all + &more)
    };
    let chain = |level: usize| format!("d{level}: 0 1024 linear dm/d{} 0\n", level - 1);
    let said = refused(&stack(200, &chain));
    assert!(said.contains("more than 100 devices lie below it"), "{said}");
    let pairs = |level: usize| {
        let half = |start: usize| format!("d{level}: {start} 512 linear dm/d{} {start}\n", level - 1);
        half(0) + &half(512)
    };
    let said = refused(&stack(40, &pairs));
    assert!(said.contains("more than 1048576 ways lead through the devices below it"), "{said}");
}

#[test]
fn a_volume_that_does_not_exist_is_refused_with_those_that_do() {
    let scratch = Scratch::new();
    scratch.sparse("a.img", 1 << 20);
    let table = scratch.write("t.table", "0 8 zero\n");
    let said = scratch.refused(["--disk", "a.img", "--table", &table, "--", "dm/other"]);
    assert!(said.contains("no volume is called \"dm/other\"; there are: disk/a.img, dm/t"), "{said}");
}

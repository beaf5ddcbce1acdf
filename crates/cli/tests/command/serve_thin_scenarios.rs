//! Thin pools in tables, in the situations that dm's own tests of them have: metadata that cannot be written and is checked and mended,
//! blocks of all sizes, pools on pools, stripes below and above, and what is read of a pool while it is served. The judges are bytes
//! that the tests keep by themselves, and the tools of thin-provisioning-tools.

use crate::support::nbd::python;
use crate::support::thin::{expect_scribbled, mapped, restore, scribble};
use crate::support::{Scratch, run, thin_dump, tool};

/// Sectors of the metadata that tests have.
const METADATA: u64 = 8192;

#[test]
fn metadata_that_could_not_be_written_is_checked_and_the_pool_goes_on_with_what_was_flushed() {
    let scratch = Scratch::new();
    restore(&scratch, "meta.img", 128, 64);
    scratch.sparse("data.img", 64 << 16);
    let pool = "0 8192 thin-pool MAP data.img 128 0\na: 0 8192 thin dm/pool 1\n";
    let whole = scratch.write("whole.table", format!("pool: {}", pool.replace("MAP", "meta.img")));
    let script =
        |script: &str| python(&format!("a, block = connect({:?}), 65536\n{script}", scratch.uri("dm/a")));
    let server = scratch.serve(["--table", &whole]);
    script("a.pwrite(b'a' * 3 * block, 0)\na.flush()\n");
    server.stop_quietly();
    let before = thin_dump(&scratch.at("meta.img"));

    // All that is in use can be written, and no block more.
    let used = (1..).find(|block| scratch.read("meta.img")[block * 4096..].iter().all(|byte| *byte == 0));
    let there = used.expect("it is mostly empty") * 8;
    let lines = format!(
        "map: 0 {there} linear meta.img 0\nmap: {there} {} error\npool: {}",
        METADATA - there as u64,
        pool.replace("MAP", "dm/map")
    );
    let damaged = scratch.write("damaged.table", lines);
    let server = scratch.serve(["--table", &damaged]);
    let said = script(
        "
def tried(act):
    try:
        act()
        return 'done'
    except nbd.Error as error:
        return error.errno
print(tried(lambda: a.pwrite(b'b' * block, 10 * block)), tried(a.flush), tried(lambda: a.pwrite(b'c' * 4096, 20 * block)))
print(tried(lambda: a.pwrite(b'a' * 4096, 0)), a.pread(3 * block, 0) == b'a' * 3 * block)
",
    );
    assert_eq!(said, "done EIO EIO\ndone True\n");
    let ended = server.stop();
    assert!(
        !ended.status.success() && ended.stderr.contains("its metadata is read-only"),
        "{}",
        ended.stderr
    );

    // The device can be written again. The pool cannot, before somebody has looked at it: who starts it hears so, and clients do.
    let server = scratch.serve(["--table", &whole]);
    let said = script(
        "
print(a.is_read_only())
print(a.pread(3 * block, 0) == b'a' * 3 * block, a.pread(block, 10 * block) == bytes(block))
",
    );
    assert_eq!(said, "True\nTrue True\n");
    let ended = server.stop();
    let warning = "dm/a: it is served read-only: dm/pool below it is read-only: meta.img: its metadata needs a check (needs_check): \
                   run `thin_check --clear-needs-check-flag` on it, and `thin_repair` if that finds something";
    assert!(ended.status.success() && ended.stderr.contains(warning), "{}", ended.stderr);
    assert_eq!(
        thin_dump(&scratch.at("meta.img")),
        before.replace("flags=\"0\"", "flags=\"1\""),
        "needs_check"
    );
    run(tool("thin_check").args(["--clear-needs-check-flag", &scratch.at("meta.img")]));
    let server = scratch.serve(["--table", &whole]);
    script(
        "a.pwrite(b'b' * block, 10 * block)\na.flush()\nassert a.pread(3 * block, 0) == b'a' * 3 * block\n",
    );
    server.stop_quietly();
    assert_eq!(mapped(&thin_dump(&scratch.at("meta.img")), 1), 4);

    // So are those of a pool whose line says that it is only read.
    let line = pool.replace("MAP", "meta.img").replace("128 0\n", "128 0 1 read_only\n");
    let server = scratch.serve(["--table", &scratch.write("only_read.table", format!("pool: {line}"))]);
    assert_eq!(script("print(a.is_read_only(), a.pread(3, 0))\n"), "True bytearray(b'aaa')\n");
    let said = server.stop().stderr;
    assert!(
        said.contains("dm/pool below it is read-only: line 1 of ") && said.contains("has it so"),
        "{said}"
    );
}

/// Clients may try again as often as they like, and a log has an end.
#[test]
fn what_clients_make_a_pool_complain_of_is_told_now_and_then_and_not_each_time() {
    let scratch = Scratch::new();
    let told = |blocks: u64, pool: &str, script: &str, what: &str| {
        restore(&scratch, "meta.img", 128, blocks);
        let table = scratch.write("thin.table", format!("{pool}a: 0 65536 thin dm/pool 1\n"));
        let server = scratch.serve(["--table", &table]);
        let said = python(&format!(
            "
a, refused, block = connect({:?}), 0, 65536
def write(nth):
    global refused
    try:
        a.pwrite(b'x' * 4096, nth * block)
    except nbd.Error:
        refused += 1
{script}
print(refused)
",
            scratch.uri("dm/a")
        ));
        let log = server.stop().stderr;
        let lines = log.lines().filter(|line| line.contains(what)).count();
        // More than one is what a very slow machine has time for.
        assert!((1..30).contains(&lines), "{lines} times {what}: {log}");
        said
    };
    scratch.sparse("data.img", 32 << 20);
    let said = told(
        512,
        "data: 0 128 linear data.img 0\ndata: 128 65408 error\npool: 0 65536 thin-pool meta.img dm/data 128 0\n",
        "for nth in range(300):\n    write(nth)",
        "new blocks at sector",
    );
    assert_eq!(said, "299\n");
    // A guest that discards what it deletes, on a pool that it fills.
    let flips = "
for nth in range(16):
    write(nth)
for _ in range(200):
    a.trim(2 * block, 0)
    a.flush()
    for nth in 0, 1, 16:
        write(nth)
";
    scratch.sparse("data.img", 1 << 20);
    let pool = "pool: 0 2048 thin-pool meta.img data.img 128 LOW 1 error_if_no_space\n";
    for (low, what) in [("0", "it has no free data blocks"), ("1", "the low water mark of 1 is reached")] {
        assert_eq!(told(16, &pool.replace("LOW", low), flips, what), "200\n");
    }
}

#[test]
fn blocks_may_have_any_size_that_linux_knows() {
    // 192 KiB and 1 MiB, and the largest that there is: 1 GiB.
    for (block, blocks) in [(384, 220), (2048, 48), (2 << 20, 4)] {
        let scratch = Scratch::new();
        restore(&scratch, "meta.img", block, blocks);
        scratch.sparse("data.img", block * 512 * blocks);
        let lines = format!(
            "pool: 0 {} thin-pool meta.img data.img {block} 0\na: 0 32768 thin dm/pool 1\nb: 0 32768 thin dm/pool 2\n",
            block * blocks
        );
        let table = scratch.write("thin.table", lines);
        for seed in 1..=2 {
            let server = scratch.serve(["--table", &table]);
            scribble(&scratch, seed);
            server.stop_quietly();
            let dump = thin_dump(&scratch.at("meta.img"));
            assert!(mapped(&dump, 1) > 0 && mapped(&dump, 1) <= 32768_u64.div_ceil(block), "{dump}");
        }
        let server = scratch.serve(["--table", &table, "--read-only"]);
        expect_scribbled(&scratch);
        server.stop_quietly();
    }
}

#[test]
fn a_pool_may_lie_on_a_volume_of_another_one_and_gives_back_to_it_what_it_gets_back() {
    let scratch = Scratch::new();
    restore(&scratch, "inner.img", 128, 700);
    restore(&scratch, "outer.img", 256, 300);
    scratch.sparse("data.img", 700 << 16);
    let lines = "inner: 0 89600 thin-pool inner.img data.img 128 0\n\
                 middle: 0 76800 thin dm/inner 2\n\
                 outer: 0 76800 thin-pool outer.img dm/middle 256 0\n\
                 a: 0 32768 thin dm/outer 1\n\
                 b: 0 32768 thin dm/outer 2\n";
    let table = scratch.write("thin.table", lines);
    for seed in 1..=2 {
        let server = scratch.serve(["--table", &table]);
        scribble(&scratch, seed);
        server.stop_quietly();
        let [inner, outer] = ["inner.img", "outer.img"].map(|name| thin_dump(&scratch.at(name)));
        let there = mapped(&outer, 1) + mapped(&outer, 2);
        assert!(there > 20 && mapped(&inner, 2) > 20 && mapped(&inner, 2) <= 2 * there, "{inner}\n{outer}");
    }
    let server = scratch.serve(["--table", &table]);
    expect_scribbled(&scratch);
    for name in ["dm/a", "dm/b"] {
        python(&format!("h = connect({:?})\nh.trim(h.get_size(), 0)\nh.flush()\n", scratch.uri(name)));
    }
    server.stop_quietly();
    let [inner, outer] = ["inner.img", "outer.img"].map(|name| thin_dump(&scratch.at(name)));
    assert_eq!([mapped(&outer, 1), mapped(&outer, 2), mapped(&inner, 2)], [0, 0, 0]);
}

#[test]
fn stripes_may_lie_below_a_pool_and_on_its_volumes() {
    let scratch = Scratch::new();
    restore(&scratch, "meta.img", 128, 640);
    for name in ["one.img", "two.img"] {
        scratch.sparse(name, 320 << 16);
    }
    // Each of the two devices has a stripe on each volume; chunks are smaller, and larger, than blocks.
    let lines = "data: 0 81920 striped 2 64 one.img 0 two.img 0\n\
                 pool: 0 81920 thin-pool meta.img dm/data 128 0\n\
                 left: 0 32768 thin dm/pool 1\n\
                 right: 0 32768 thin dm/pool 2\n\
                 a: 0 32768 striped 2 32 dm/left 0 dm/right 0\n\
                 b: 0 32768 striped 2 512 dm/left 16384 dm/right 16384\n";
    let table = scratch.write("thin.table", lines);
    for seed in 1..=2 {
        let server = scratch.serve(["--table", &table]);
        scribble(&scratch, seed);
        server.stop_quietly();
        let dump = thin_dump(&scratch.at("meta.img"));
        assert!(mapped(&dump, 1) > 20 && mapped(&dump, 2) > 20, "{dump}");
    }
    let server = scratch.serve(["--table", &table, "--read-only"]);
    expect_scribbled(&scratch);
    server.stop_quietly();
}

#[test]
fn the_tools_read_a_metadata_snapshot_of_a_pool_that_is_served_and_written() {
    let scratch = Scratch::new();
    restore(&scratch, "meta.img", 128, 64);
    scratch.sparse("data.img", 64 << 16);
    let table = scratch
        .write("thin.table", "pool: 0 8192 thin-pool meta.img data.img 128 0\na: 0 8192 thin dm/pool 1\n");
    let server = scratch.serve(["--table", &table]);
    let write = |script: &str| {
        python(&format!("a, block = connect({:?}), 65536\n{script}\na.flush()\n", scratch.uri("dm/a")));
    };
    let message = |words: &str| run(&mut scratch.blockwork(["message", "dm/pool", "0", words]));
    write("a.pwrite(b'a' * 8 * block, 0)");
    message("create_snap 3 1");
    // Two that are copied, and one that is new.
    write("a.pwrite(b'b' * 4096, 2 * block)\na.pwrite(b'b' * block, 5 * block)\na.pwrite(b'b', 20 * block)");
    message("reserve_metadata_snap");
    let delta = || {
        let said =
            run(tool("thin_delta").args(["-m", "--snap1", "3", "--snap2", "1", &scratch.at("meta.img")]));
        let lines = said.lines().map(str::trim).filter(|line| line.contains("begin="));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let expected = [
        "<same begin=\"0\" length=\"2\"/>",
        "<different begin=\"2\" length=\"1\"/>",
        "<same begin=\"3\" length=\"2\"/>",
        "<different begin=\"5\" length=\"1\"/>",
        "<same begin=\"6\" length=\"2\"/>",
        "<right_only begin=\"20\" length=\"1\"/>",
    ];
    assert_eq!(delta(), expected);
    // What comes later is not in it, whatever becomes of the blocks.
    write("a.pwrite(b'c' * 30 * block, 0)\na.trim(8 * block, 0)");
    message("delete 3");
    message("create_thin 4");
    assert_eq!(delta(), expected);
    let dump = run(tool("thin_dump").args(["-m", &scratch.at("meta.img")]));
    assert!(mapped(&dump, 1) == 9 && mapped(&dump, 3) == 8 && !dump.contains("dev_id=\"4\""), "{dump}");
    message("release_metadata_snap");
    server.stop_quietly();
    let dump = thin_dump(&scratch.at("meta.img"));
    assert!(mapped(&dump, 1) == 22 && !dump.contains("dev_id=\"3\""), "{dump}");
}

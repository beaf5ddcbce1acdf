//! Linux in a virtual machine on disks that we serve by vhost-user-blk: file systems, fio's verification, discards, a disk that
//! grows, servers that are killed while the guest writes, and a guest that is stopped, saved, moved and given memory meanwhile.

use std::fs;
use std::os::unix::fs::MetadataExt;

use crate::support::{Scratch, Server, run, until};
use blockwork_kernel::{Guest, VhostDisk};

const MIB: u64 = 1 << 20;

/// What the kernel makes of the disk.
const LIMITS: &str = "cd /sys/block/vdb/queue; echo queues $(ls ../mq | wc -l); for one in discard_max_bytes write_zeroes_max_bytes \
    max_segments logical_block_size write_cache; do echo $one $(cat $one); done; \
    if (echo 'write through' >../cache_type) 2>/dev/null; then false; fi; cd /tmp";

/// A file system, used; and what is discarded is given back.
const FILE_SYSTEM: &str = "
mkfs.ext4 -q -E nodiscard /dev/vdb
mkdir -p /tmp/m; mount /dev/vdb /tmp/m
dd if=/dev/urandom of=/tmp/m/file bs=1M count=8 status=none
sum=$(sha256sum </tmp/m/file); umount /tmp/m; forget
mount /dev/vdb /tmp/m; [ \"$sum\" = \"$(sha256sum </tmp/m/file)\" ]
rm /tmp/m/file; sync; fstrim -v /tmp/m; umount /tmp/m
e2fsck -fn /dev/vdb >&2
blkdiscard /dev/vdb; [ -z \"$(tr -d '\\0' </dev/vdb | head -c 1)\" ] && echo discarded
dd if=/dev/urandom of=/dev/vdb bs=1M count=4 oflag=direct status=none
blkdiscard -z -l 4M /dev/vdb; forget; [ -z \"$(head -c 4M /dev/vdb | tr -d '\\0' | head -c 1)\" ] && echo zeroed
";

/// Until they are told that this is enough, in sessions of their own, which the end of this script does not end: jobs that write and verify on
/// two processors, and on two others jobs that read what was written before, so that all queues are used. The memory that these read
/// into is written by nobody but the server: what a move leaves behind of it is an error of theirs.
const JOBS: &str = "
run() {
    fio --name=job --filename=/dev/vdb --bs=4k --iodepth=64 --ioengine=libaio --direct=1 --size=4M --offset_increment=8M \\
        --numjobs=2 --cpus_allowed_policy=split --group_reporting --verify=crc32c --verify_fatal=1 --do_verify=1 \"$@\"
}
again_and_again() {
    local name=$1
    shift
    until [ -e /tmp/enough ]; do run \"$@\" >/tmp/said.$name 2>&1 || break; done
    [ -e /tmp/enough ] && echo verified >/tmp/result.$name || echo failed >/tmp/result.$name
}
run --rw=randwrite --offset=32M >&2
export -f run again_and_again
for jobs in 'writes --cpus_allowed=0-1 --rw=randwrite --verify_backlog=256' 'reads --cpus_allowed=2-3 --rw=randread --offset=32M --loops=8'; do
    setsid bash -c \"again_and_again $jobs\" </dev/null >/dev/null 2>&1 9>&- &
done
# Or the end of this script would come before their sessions.
for name in reads writes; do until [ -e /tmp/said.$name ]; do busybox usleep 20000; done; done
";

/// Waits until they have read and written more.
const GO_ON: &str = "
read -a before </sys/block/vdb/stat
more() { read -a now </sys/block/vdb/stat; [ ${now[$1]} -gt $((before[$1] + 400)) ]; }
for what in 0 4; do wait_for more $what || { cat /tmp/said.* >&2; false; }; done
for result in /tmp/result.*; do [ ! -e $result ] || { cat /tmp/said.* >&2; false; }; done
";

const VERIFIED: &str = "
touch /tmp/enough
for name in reads writes; do until [ -e /tmp/result.$name ]; do busybox usleep 20000; done; done
cat /tmp/said.* /tmp/result.*
";

/// Has the kernel put what it is given where programs get their memory from first, and tells how much it has.
const MORE_MEMORY: &str = "echo online_movable >/sys/devices/system/memory/auto_online_blocks";
const HAS_MORE_MEMORY: &str =
    "more() { read -r _ kib _ </proc/meminfo; [ $kib -gt 1100000 ]; }; wait_for more; echo more";

fn fio(seconds_or_size: &str) -> String {
    format!(
        "fio --name=verify --filename=/dev/vdb --rw=randwrite --bs=4k --iodepth=16 --ioengine=libaio --direct=1 \
         --verify=crc32c --verify_fatal=1 --do_verify=1 --verify_backlog=512 {seconds_or_size} >&2 && echo verified"
    )
}

fn serve(scratch: &Scratch, disks: &[&str]) -> Server {
    let socket = scratch.at("socket");
    let mut command =
        scratch.blockwork(["serve", "--workers", "2", "--vhost-user", &socket, "--stats", "--disk"]);
    Server::start(command.args(disks))
}

fn guest(scratch: &Scratch, queues: u16, queue_size: u16, packed: bool) -> Guest {
    Guest::with_vhost_disks(vec![VhostDisk { socket: scratch.path("socket"), queues, queue_size, packed }])
}

fn script(guest: &Guest, script: &str) -> String {
    match guest.scenario().script(script).run() {
        Ok(output) => output.stdout,
        Err(error) => panic!("in the guest: {error}"),
    }
}

#[test]
fn linux_uses_the_disk_by_split_and_packed_rings() {
    for (queues, queue_size, packed) in [(2, 128, false), (1, 64, true)] {
        let scratch = Scratch::new();
        scratch.sparse("disk.img", 64 * MIB);
        let server = serve(&scratch, &["disk.img"]);
        let guest = guest(&scratch, queues, queue_size, packed);
        let said = script(&guest, &format!("{LIMITS}\n{FILE_SYSTEM}\n{}", fio("--size=8M")));
        for expected in
            [&format!("queues {queues}"), "write_cache write back", "discarded", "zeroed", "verified"]
        {
            assert!(said.contains(expected), "{expected}: {said}");
        }
        assert!(!said.contains("discard_max_bytes 0"), "{said}");
        drop(guest);
        let said = server.stop().stderr;
        assert!(said.contains("queue 0"), "the rings are told of: {said}");
    }
}

#[test]
fn linux_finds_the_partitions_of_a_4kn_disks_image_which_has_its_blocks() {
    let scratch = Scratch::new();
    let disk = format!("{},logical_block_size=4096", scratch.sparse("disk.img", 64 * MIB));
    let server = serve(&scratch, &[&disk]);
    let guest = guest(&scratch, 2, 128, false);
    let said = script(
        &guest,
        &format!(
            "{LIMITS}\nprintf 'label: gpt\\nstart=256, size=8192\\n' | sfdisk -q /dev/vdb\n\
             echo start $(cat /sys/block/vdb/vdb1/start)\nmkfs.ext4 -q /dev/vdb1; e2fsck -fn /dev/vdb1 >&2\n{}",
            fio("--size=8M --offset=40M")
        ),
    );
    for expected in ["logical_block_size 4096", "start 2048", "verified"] {
        assert!(said.contains(expected), "{expected}: {said}");
    }
    drop(guest);
    server.stop();
    let said = run(&mut scratch.blockwork(["scan", &disk]));
    assert!(said.contains("disk/disk.img/1") && said.contains("32M") && said.contains("ext4"), "{said}");
}

#[test]
fn linux_uses_the_disk_where_threads_do_the_io_and_their_server_is_killed() {
    let scratch = Scratch::new();
    let path = scratch.sparse("disk.img", 256 * MIB);
    let socket = scratch.at("socket");
    let serve = || {
        let args =
            ["serve", "--vhost-user", &socket, "--workers", "2", "--io", "threads", "--disk", "disk.img"];
        Server::start(&mut scratch.without_ring(args))
    };
    let server = serve();
    let guest = guest(&scratch, 2, 128, false);
    let said = script(&guest, &format!("{LIMITS}\n{FILE_SYSTEM}"));
    for expected in ["queues 2", "discarded", "zeroed"] {
        assert!(said.contains(expected), "{expected}: {said}");
    }
    let server = killed_under_fio(&guest, &path, server, serve);
    drop(guest);
    assert!(server.stop().status.success());
}

/// Kills the server three times while fio writes and verifies in the guest; the last one that was started.
fn killed_under_fio(guest: &Guest, disk: &str, first: Server, serve: impl Fn() -> Server) -> Server {
    let written = || fs::metadata(disk).map_or(0, |data| data.blocks() * 512);
    let before = written();
    let mut server = Some(first);
    std::thread::scope(|scope| {
        let verified = scope.spawn(|| script(guest, &fio("--offset=64M --size=24M --time_based=0")));
        for round in 1..=3 {
            let wrote = || written() > before + round * 4 * MIB;
            until("the guest writes", || wrote() || verified.is_finished());
            assert!(!verified.is_finished(), "the guest was done before round {round}");
            server.take().map(Server::kill);
            server = Some(serve());
        }
        assert!(verified.join().unwrap().contains("verified"));
    });
    server.expect("one was started")
}

#[test]
fn a_guest_goes_on_when_its_server_is_killed_and_comes_back() {
    for packed in [false, true] {
        let scratch = Scratch::new();
        let path = scratch.sparse("disk.img", 256 * MIB);
        // One of them has its memory pinned, by each server anew.
        let memory = if packed { "pinned" } else { "as-is" };
        let serve = || serve(&scratch, &["disk.img", "--guest-memory", memory]);
        let first = serve();
        let guest = guest(&scratch, 2, 128, packed);
        guest.boot().unwrap();
        let last = killed_under_fio(&guest, &path, first, serve);
        let said = run(&mut scratch.blockwork(["status"]));
        let locked = said.lines().find_map(|line| line.strip_suffix(" MiB are locked")?.rsplit(' ').next());
        assert_eq!(packed, locked.is_some_and(|mib| mib.parse::<u64>().unwrap() > 0), "{said}");
        drop(guest);
        last.stop();
    }
}

/// MiB of a guest's memory that its server has told to be in huge pages, last.
fn in_huge_pages(server: &Server) -> u64 {
    let said = server.said();
    let mut told =
        said.lines().filter_map(|line| line.split_once(" of the guest's memory are in huge pages"));
    let last = told.next_back().and_then(|(line, _)| line.rsplit(' ').nth(3));
    last.map_or(0, |mib| mib.parse().expect("a number"))
}

/// The device of the guest stays, and what it asks for waits in its rings, while nobody serves it. Whoever does gathers its memory in huge pages.
#[test]
fn a_guests_disk_is_taken_away_by_force_while_it_writes_and_given_back() {
    let scratch = Scratch::new();
    scratch.sparse("disk.img", 64 * MIB);
    let mut command = scratch.blockwork(["serve", "--workers", "2", "--guest-memory", "huge"]);
    command.args(["--nbd", &format!("unix:{}", scratch.at("nbd")), "--disk", "disk.img"]);
    let server = Server::start(command.env("RUST_LOG", "info"));
    let socket = scratch.at("socket.vm");
    let export = |words: &[&str]| run(&mut scratch.blockwork([&["export"], words].concat()));
    export(&["add", "disk/disk.img", "--vhost-user", &socket]);
    let guest = Guest::with_vhost_disks(vec![VhostDisk {
        socket: scratch.path("socket.vm"),
        queues: 4,
        queue_size: 128,
        packed: false,
    }]);
    script(&guest, JOBS);
    for _ in 0..3 {
        script(&guest, GO_ON);
        export(&["remove", &socket, "--force"]);
        assert!(!fs::exists(&socket).unwrap());
        export(&["add", "disk/disk.img", "--vhost-user", &socket]);
    }
    script(&guest, GO_ON);
    until("the guest's memory is gathered", || in_huge_pages(&server) >= 64);
    let said = script(&guest, VERIFIED);
    assert_eq!(said.matches("verified").count(), 2, "{said}");
    drop(guest);
    assert!(server.stop().status.success());
}

#[test]
fn an_array_grows_under_a_guest_that_sees_it() {
    let scratch = Scratch::new();
    for name in ["a.img", "b.img"] {
        scratch.sparse(name, 64 * MIB);
    }
    let create = "md create --level 1 --raid-devices 2 --name data --data-offset 1M --size 32M --assume-clean a.img b.img";
    run(&mut scratch.blockwork(create.split(' ')));
    let server = serve(&scratch, &["a.img", "b.img", "md/data"]);
    let guest = guest(&scratch, 1, 128, false);
    assert!(script(&guest, "blockdev --getsize64 /dev/vdb").contains(&(32 * MIB).to_string()));
    run(&mut scratch.blockwork(["md", "grow", "md/data", "--size", "49152", "--assume-clean", "--wait"]));
    let larger = format!("larger() {{ [ $(blockdev --getsize64 /dev/vdb) = {} ]; }}", 48 * MIB);
    let write = "dd if=/dev/urandom of=/dev/vdb bs=1M seek=40 count=8 oflag=direct conv=fsync status=none; echo written";
    assert!(script(&guest, &format!("{larger}\nwait_for larger\n{write}")).contains("written"));
    drop(guest);
    server.stop();
}

#[test]
fn a_guest_is_stopped_saved_moved_and_given_memory_while_it_reads_and_writes() {
    let scratch = Scratch::new();
    scratch.sparse("disk.img", 64 * MIB);
    let socket = scratch.at("socket");
    let mut command =
        scratch.blockwork(["serve", "--workers", "2", "--vhost-user", &socket, "--disk", "disk.img"]);
    // The messages of the front ends.
    let server = Server::start(command.env("RUST_LOG", "blockwork_export=debug"));
    let disk = VhostDisk { socket: scratch.path("socket"), queues: 4, queue_size: 1024, packed: false };
    let guest = Guest::with_vhost_disks(vec![disk.clone()]);
    assert!(script(&guest, &format!("{LIMITS}\n{JOBS}\n{GO_ON}")).contains("queues 4"));
    for _ in 0..3 {
        guest.stop_and_go_on().unwrap();
        script(&guest, GO_ON);
    }
    guest.save_and_restore().unwrap();
    script(&guest, GO_ON);
    // The next front end comes while the first is there, to the same socket.
    guest.move_to(&[disk]).unwrap();
    script(&guest, &format!("{GO_ON}\n{MORE_MEMORY}"));
    guest.add_memory(256).unwrap();
    script(&guest, &format!("{HAS_MORE_MEMORY}\n{GO_ON}"));
    let said = script(&guest, VERIFIED);
    assert_eq!(said.matches("verified").count(), 2, "{said}");
    drop(guest);
    let said = server.stop().stderr;
    for expected in ["GetVringBase", "SetLogBase", "AddMemReg"] {
        assert!(said.contains(expected), "the front end has not said {expected}: {said}");
    }
}

/// Each server finds what the other one has recorded: blocks that are new, and those that the snapshot shared.
#[test]
fn a_guest_moves_with_a_thin_volume_from_one_server_to_another_and_back_while_it_reads_and_writes() {
    let scratch = Scratch::new();
    scratch.sparse("pv.img", 320 * MIB);
    for verb in [
        "vg create vg pv.img",
        "lv create vg/pool --thin-pool --size 200M --disk pv.img",
        "lv create vg/disk --thin pool --virtual-size 64M --disk pv.img",
    ] {
        run(&mut scratch.blockwork(verb.split(' ')));
    }
    let serve = |socket: &str| {
        let args = ["serve", "--migratable", "--workers", "2", "--vhost-user", &scratch.at(socket)];
        let mut command = scratch.blockwork(args);
        command.args(["--disk", "pv.img", "vg/disk"]);
        Server::start(command.env("RUST_LOG", "info"))
    };
    let disk = |socket: &str| {
        let socket = scratch.path(socket);
        vec![VhostDisk { socket, queues: 4, queue_size: 256, packed: false }]
    };
    let here = serve("here");
    let guest = Guest::with_vhost_disks(disk("here"));
    let said = script(&guest, &format!("{LIMITS}\n{JOBS}\n{GO_ON}"));
    assert!(said.contains("queues 4") && !said.contains("discard_max_bytes 0"), "{said}");
    // Changed by its server, which is here now.
    run(&mut scratch.blockwork("lv snapshot vg/disk --name before".split(' ')));
    script(&guest, GO_ON);
    let there = serve("there");
    for _ in 0..2 {
        guest.move_to(&disk("there")).unwrap();
        script(&guest, GO_ON);
        guest.save_and_restore().unwrap(); // to where it has booted
        script(&guest, GO_ON);
    }
    let said = script(&guest, VERIFIED);
    assert_eq!(said.matches("verified").count(), 2, "{said}");
    drop(guest);
    for (server, stays) in [(here, 3), (there, 2)] {
        until("the disk is let go of", || server.said().matches("they are closed").count() == stays);
        let ended = server.stop();
        assert!(ended.status.success() && !ended.stderr.contains("error"), "{}", ended.stderr);
    }
    let said = run(&mut scratch.blockwork(["scan", "pv.img"]));
    assert!(said.contains("vg/before") && !said.contains("warning"), "{said}");
}

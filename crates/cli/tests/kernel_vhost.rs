//! Linux in a virtual machine on disks that we serve by vhost-user-blk: file systems, fio's verification, discards, a disk that
//! grows, and servers that are killed while the guest writes.

mod support;

use std::fs;
use std::os::unix::fs::MetadataExt;

use blockwork_kernel::{Guest, VhostDisk};
use support::{Scratch, Server, run, until};

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
        let first = serve(&scratch, &["disk.img"]);
        let guest = guest(&scratch, 2, 128, packed);
        guest.boot().unwrap();
        let last = killed_under_fio(&guest, &path, first, || serve(&scratch, &["disk.img"]));
        drop(guest);
        last.stop();
    }
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

//! The kernel's own NFS, within the guest: `linearize=auto` on a file of its client, over nfsd on loopback, where the kernel counts the calls
//! that it makes of our requests; and our client of nfsd, which restarts meanwhile.

use std::fs;
use std::process::Command;

use crate::support::{Scratch, run};
use blockwork_kernel::Guest;

/// An ext4 exported as NFS 4.0 to 4.2. nfsd asks for exports through caches in /proc, which are filled here: no daemons.
const EXPORT: &str = "
modprobe nfsd; modprobe nfsv4
busybox ip link set lo up
mkfs.ext4 -q /d/a; mkdir -p /tmp/exported /tmp/mounted; mount /d/a /tmp/exported
truncate -s 64M /tmp/exported/disk.img
mount -t nfsd nfsd /proc/fs/nfsd || mountpoint -q /proc/fs/nfsd
echo '-2 -3 +4 +4.0 +4.1 +4.2' >/proc/fs/nfsd/versions
exports() {
    until=$(($(date +%s) + 86400))
    echo \"nfsd 127.0.0.1 $until all\" >/proc/net/rpc/auth.unix.ip/channel
    # Flags: the root of what is exported, from any port, without looking at folders above; root stays root.
    printf 'all /tmp/exported %s %s 65534 65534 0\\n' $until $((0x2000 + 0x0002 + 0x0400)) >/proc/net/rpc/nfsd.export/channel
    printf 'all 1 \\\\x00000000 %s /tmp/exported\\n' $until >/proc/net/rpc/nfsd.fh/channel
}
exports
echo 10 >/proc/fs/nfsd/nfsv4leasetime
echo 10 >/proc/fs/nfsd/nfsv4gracetime
echo 'tcp 2049' >/proc/fs/nfsd/portlist
echo 4 >/proc/fs/nfsd/threads
";

/// And mounted.
const MOUNT: &str = "
mount -i -t nfs -o vers=4.2,addr=127.0.0.1,clientaddr=127.0.0.1 127.0.0.1:/ /tmp/mounted
";

/// `serve OUT ARGS...`: our server on the mounted file, its statistics in /out/OUT; `stop` ends it. `calls` tells of the kernel's.
const SERVE: &str = "
chmod +x /in/blockwork
calls() { while read -r op n rest; do [ \"$op\" = WRITE: ] && echo $n && return; done </proc/self/mountstats; }
serve() {
    local out=$1
    shift
    rm -f /tmp/ready
    /in/blockwork serve --disk /tmp/mounted/disk.img --workers 1 --stats --json --nbd unix:/tmp/socket \"$@\" >/tmp/ready 2>/out/$out &
    server=$!
    until grep -q ready /tmp/ready; do busybox usleep 20000; kill -0 $server; done
}
stop() { kill -TERM $server; wait $server; }
";

/// Writes in sequence, by a server on the mounted file: `writes WAY LENGTH COUNT` tells how many calls they were, and leaves the
/// server's statistics in /out/WAY.LENGTH. Small writes come in a page each, so elements of 512 bytes end within pages.
const WRITES: &str = "
writes() {
    serve $1.$2 --set linearize=$1
    before=$(calls)
    fio --name=w --ioengine=nbd --uri='nbd+unix:///?socket=/tmp/socket' --rw=write --bs=$2 --iodepth=32 --iodepth_batch=8 \
        --iodepth_batch_complete_min=8 --size=32M --io_size=$(($2 * $3)) >&2
    echo $1 $2 $(($(calls) - before))
    stop
}
";

/// Random writes off pages and at pages, with flushes among them, each of which must give back what was written; and once more, of another
/// server, when the kernel has forgotten what it knew of the file.
const VERIFIES: &str = "
job() {
    fio --name=v --ioengine=nbd --uri='nbd+unix:///?socket=/tmp/socket' --bsrange=512-16k --bs_unaligned=0 --iodepth=8 --size=8M \
        --io_size=4M --rw=randwrite --fsync=16 --verify=crc32c --verify_fatal=1 --randseed=7 \"$@\" >&2
}
serve verified
job
stop
echo 3 >/proc/sys/vm/drop_caches
serve again
job --verify_only
stop
echo verified
";

/// Our client of nfsd: random writes with flushes among them, while nfsd ends and begins a new life, and what it has in the end. `calls` tells how
/// many COMMITs and WRITEs nfsd has done: it ends when it has many of these since the last of those, so that it has something to forget. The nfsd
/// of this kernel does wrong what it is asked together (leaf/src/nfs/trust.rs).
const OURS: &str = "
chmod +x /in/blockwork
calls() { busybox awk '/^proc4ops /{print $(3 + 5), $(3 + 38)}' /proc/net/rpc/nfsd; }
has_something_to_forget() {
    set -- $(calls)
    [ $1 = $commits ] || { commits=$1 from=$2; }
    [ $2 -gt $((from + 64)) ]
}
job() {
    fio --name=v --bs=4k --iodepth=32 --iodepth_batch=16 --iodepth_batch_complete_min=16 --size=16M --rw=randwrite --fsync=512 \
        --verify=crc32c --verify_fatal=1 --randseed=7 \"$@\" >&2
}
busybox dd if=/dev/zero of=/tmp/exported/disk.img bs=1M count=16 conv=notrunc,fsync
rm -f /tmp/ready
/in/blockwork serve --disk 'nfs://127.0.0.1/disk.img?timeo=100' --workers 1 --nbd unix:/tmp/socket >/tmp/ready 2>/out/said &
server=$!
until grep -q ready /tmp/ready; do busybox usleep 20000; kill -0 $server; done
nbd='--ioengine=nbd --uri=nbd+unix:///?socket=/tmp/socket'
job $nbd --rate=,2m &
fio=$!
for life in 1 2; do
    set -- $(calls)
    before=$2 commits=none
    until set -- $(calls); [ $2 -gt $((before + 500)) ]; do busybox usleep 20000; kill -0 $fio; done
    until has_something_to_forget; do busybox usleep 20000; kill -0 $fio; done
    # Its end empties the caches.
    echo 0 >/proc/fs/nfsd/threads
    exports
    echo 'tcp 2049' >/proc/fs/nfsd/portlist
    echo 4 >/proc/fs/nfsd/threads
done
wait $fio
job $nbd --verify_only
kill -TERM $server; wait $server
job --filename=/tmp/exported/disk.img --ioengine=psync --verify_only
echo verified
";

const UNMOUNT: &str = "umount /tmp/mounted";
const STOP: &str = "echo 0 >/proc/fs/nfsd/threads; echo f >/proc/fs/nfsd/unlock_filesystem 2>/dev/null || true
exportfs_flush() { for cache in nfsd.fh nfsd.export auth.unix.ip; do echo $(($(date +%s) + 1)) >/proc/net/rpc/$cache/flush; done; }
exportfs_flush; until umount /tmp/exported; do exportfs_flush; busybox usleep 200000; done";

/// This program without what debuggers need, which would fill the guest's memory.
fn stripped(scratch: &Scratch) -> Vec<u8> {
    let path = scratch.path("stripped");
    run(Command::new("strip").arg("-o").arg(&path).arg(env!("CARGO_BIN_EXE_blockwork")));
    fs::read(path).expect("it was stripped")
}

/// Calls that `writes WAY LENGTH` told of.
fn calls(said: &str, run: &str) -> u64 {
    let line = said.lines().find_map(|line| line.strip_prefix(run));
    line.and_then(|calls| calls.trim().parse().ok()).unwrap_or_else(|| panic!("{run}: {said}"))
}

#[test]
fn elements_off_pages_are_linear_on_nfs_and_those_at_pages_need_not_be() {
    let scratch = Scratch::new();
    scratch.sparse("a.img", 256 << 20);
    let runs = "writes off 512 2000; writes auto 512 12000; writes off 4096 4000; writes auto 4096 4000";
    let guest = Guest::shared();
    let scenario = guest.scenario().disk("a", scratch.path("a.img")).input("blockwork", stripped(&scratch));
    let output = match scenario
        .script(format!("{EXPORT}\n{MOUNT}\n{SERVE}\n{WRITES}\n{runs}\n{VERIFIES}\n{UNMOUNT}\n{STOP}"))
        .run()
    {
        Ok(output) => output,
        Err(error) => panic!("in the guest: {error}"),
    };
    assert!(output.stdout.contains("\nverified"), "what was written is read again: {}", output.stdout);
    let said = &output.stdout;
    assert_eq!(calls(said, "off 512"), 2000, "each element is a call of its own");
    assert!(calls(said, "auto 512") < 12_000 / 2, "{said}");
    // Merged by the kernel as they are; both ways are some tens of elements a call.
    assert!(calls(said, "off 4096") < 4000 / 4 && calls(said, "auto 4096") < 4000 / 4, "{said}");
    let stats = String::from_utf8_lossy(&output.files["auto.512"]).into_owned();
    let line = stats.lines().rfind(|line| line.starts_with('{')).unwrap_or_else(|| panic!("{stats}"));
    let json: serde_json::Value = serde_json::from_str(line).expect("JSON");
    let classes = json["choices"].as_array().expect("classes");
    let decided = |decision: &str| {
        classes
            .iter()
            .filter(|class| class["setting"] == "linearize" && class["decision"] == decision)
            .count()
    };
    assert!(decided("linear") > 0 && decided("vectored") == 0, "{stats}");
}

#[test]
fn nfsd_that_does_several_writes_of_a_call_wrong_and_restarts_has_what_was_written() {
    let scratch = Scratch::new();
    scratch.sparse("a.img", 256 << 20);
    let guest = Guest::shared();
    let scenario = guest.scenario().disk("a", scratch.path("a.img")).input("blockwork", stripped(&scratch));
    let output = match scenario.script(format!("{EXPORT}\n{OURS}\n{STOP}")).run() {
        Ok(output) => output,
        Err(error) => panic!("in the guest: {error}"),
    };
    assert!(output.stdout.ends_with("verified\n"), "what was written is read again: {}", output.stdout);
    let said = String::from_utf8_lossy(&output.files["said"]);
    assert!(said.contains("used by NFS 4.0,"), "{said}");
    assert!(said.contains("bytes are sent again that the server may have forgotten"), "{said}");
    assert!(said.contains("it does 2 writes of one call wrong"), "{said}");
}

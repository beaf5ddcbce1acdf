//! `serve --nbd` with the clients that people use: nbdinfo, nbdcopy, qemu-img, qemu-io, fio, libnbd; over unix sockets,
//! TCP, TLS and inherited sockets; and what it says and keeps when it is told to end.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use crate::support::fs::{Loop, print_of};
use crate::support::nbd::{Raw, fio, load, nbdload, python};
use crate::support::{
    BLOCKWORK, Background, Lines, PIDFD_GETFD, Scratch, Server, Stats, both, output, run, run_refused, tool,
    until, without_call,
};
use rustix::process::Signal;
use serde_json::Value;

const MIB: u64 = 1 << 20;

/// A disk of 64 MiB with two partitions of 16 MiB at 1 and 17 MiB.
fn partitioned(scratch: &Scratch, name: &str) -> String {
    let disk = scratch.sparse(name, 64 * MIB);
    run(tool("sgdisk").args(["--clear", "--new=1:2048:+16M", "--new=2:0:+16M", &disk]));
    disk
}

#[test]
fn nbdinfo_lists_every_volume_and_the_default_export_is_the_first_one_named() {
    let scratch = Scratch::new();
    partitioned(&scratch, "a.img");
    scratch.sparse("b.img", 5 * MIB);
    let list = |server: Server| {
        let said = run(tool("nbdinfo").args(["--list", "--json", &scratch.uri("")]));
        let json: Value = serde_json::from_str(&said).expect("JSON");
        let exports = json["exports"].as_array().expect("a list").clone();
        let names: Vec<String> =
            exports.iter().map(|e| e["export-name"].as_str().unwrap().to_owned()).collect();
        let default = run(tool("nbdinfo").args(["--size", &scratch.uri("")])).trim().to_owned();
        server.stop_quietly();
        (names, exports, default)
    };
    let (names, exports, default) = list(scratch.serve(["--disk", "a.img", "b.img"]));
    assert_eq!(names, ["disk/a.img", "disk/a.img/1", "disk/a.img/2", "disk/b.img"]);
    assert_eq!(default, (64 * MIB).to_string());
    let size = |i: usize| exports[i]["export-size"].as_u64().unwrap();
    assert_eq!([size(1), size(3)], [16 * MIB, 5 * MIB]);
    for (feature, there) in
        [("can_flush", true), ("can_fua", true), ("can_trim", true), ("can_zero", true)].into_iter().chain([
            ("can_fast_zero", true),
            ("can_multi_conn", true),
            ("can_cache", true),
            ("is_read_only", false),
        ])
    {
        assert_eq!(exports[0][feature], there, "{feature}");
    }
    let (names, _, default) = list(scratch.serve(["--disk", "a.img", "b.img", "disk/b.img", "disk/a.img/2"]));
    assert_eq!(names, ["disk/b.img", "disk/a.img/2"]);
    assert_eq!(default, (5 * MIB).to_string());
}

/// `nbdinfo` asks twice about each export in the session in which it was told of them.
#[test]
fn nbdinfo_lists_thousands_of_volumes() {
    let scratch = Scratch::new();
    let names: Vec<String> = (0..2500).map(|n| format!("dm/v{n}")).collect();
    let lines: String = names.iter().map(|name| format!("{}: 0 8 zero\n", &name[3..])).collect();
    let server = scratch.serve(["--table", &scratch.write("many", lines)]);
    let said = run(tool("nbdinfo").args(["--list", "--json", &scratch.uri("")]));
    server.stop_quietly();
    let json: Value = serde_json::from_str(&said).expect("JSON");
    let exports = json["exports"].as_array().expect("a list");
    assert!(exports.iter().map(|export| export["export-name"].as_str().unwrap()).eq(&names));
}

#[test]
fn what_nbdcopy_and_qemu_img_write_to_disks_and_partitions_is_what_they_read() {
    let scratch = Scratch::new();
    partitioned(&scratch, "disk.img");
    let content = scratch.noise("part.raw", usize::try_from(16 * MIB).unwrap(), 1);
    let server = scratch.serve(["--disk", "disk.img"]);
    run(tool("nbdcopy").args(["--flush", &scratch.at("part.raw"), &scratch.uri("disk/disk.img/1")]));
    run(tool("qemu-img")
        .args(["convert", "-n", "-f", "raw", "-O", "raw", &scratch.at("part.raw")])
        .arg(scratch.uri("disk/disk.img/2")));
    for volume in ["disk/disk.img/1", "disk/disk.img/2"] {
        let said = run(tool("qemu-img")
            .args(["compare", "-f", "raw", "-F", "raw", &scratch.at("part.raw")])
            .arg(scratch.uri(volume)));
        assert!(said.contains("Images are identical."), "{said}");
    }
    run(tool("nbdcopy").args([&scratch.uri("disk/disk.img"), &scratch.at("copy.img")]));
    server.stop_quietly();
    let disk = scratch.read("disk.img");
    assert!(scratch.read("copy.img") == disk);
    assert!(disk[1 << 20..17 << 20] == content[..] && disk[17 << 20..33 << 20] == content[..]);
}

#[test]
fn qemu_io_writes_with_fua_discards_and_writes_zeroes() {
    let scratch = Scratch::new();
    let mut model = scratch.noise("disk.img", usize::try_from(8 * MIB).unwrap(), 2);
    let server = scratch.serve(["--disk", "disk.img", "--stats", "--json"]);
    let said = run(tool("qemu-io")
        .args(["-f", "raw", "-d", "unmap"])
        .args([
            "-c",
            "write -f -P 0x5a 4096 65536",
            "-c",
            "write -P 0x11 1000 10", // not even a sector
            "-c",
            "write -z 2M 1M",
            "-c",
            "write -z -u 4M 1M",
            "-c",
            "discard 6M 1M",
            "-c",
            "read -P 0x5a 4096 65536",
            "-c",
            "read -P 0x11 1000 10",
            "-c",
            "read -P 0 2M 1M",
            "-c",
            "read -P 0 4M 1M",
            "-c",
            "flush",
        ])
        .arg(scratch.uri("disk/disk.img")));
    assert!(!said.contains("failed"), "{said}");
    let map = run(tool("nbdinfo").args(["--map", "--json", &scratch.uri("")]));
    let stats = server.stop_for_stats();
    model[4096..4096 + 65_536].fill(0x5a);
    model[1000..1010].fill(0x11);
    for at in [2, 4, 6] {
        model[at << 20..(at + 1) << 20].fill(0);
    }
    assert!(scratch.read("disk.img") == model);
    // Zeroes that may be unmapped are a hole now; a discard is one, and is one request.
    let extents: Value = serde_json::from_str(&map).expect("JSON");
    let holes: Vec<(u64, u64)> = extents
        .as_array()
        .unwrap()
        .iter()
        .filter(|e| e["type"] == 3)
        .map(|e| (e["offset"].as_u64().unwrap(), e["length"].as_u64().unwrap()))
        .collect();
    assert!(holes.contains(&(4 * MIB, MIB)) && holes.contains(&(6 * MIB, MIB)), "{map}");
    // Zeroes that must not be unmapped keep their blocks. (Whether lseek calls these a hole depends on what was written back before.)
    let allocated = fs::metadata(scratch.path("disk.img")).expect("it is there").blocks() * 512;
    assert!((6 * MIB..7 * MIB).contains(&allocated), "{allocated} bytes are allocated: {map}");
    assert_eq!(stats.count("disk.img", "discard_bytes") % MIB, 0);
    assert_eq!(stats.count("disk.img", "errors"), 0);
}

/// fio writes and verifies at random with these options.
fn fio_verifies(options: &[&str]) {
    let scratch = Scratch::new();
    scratch.sparse("disk.img", 32 * MIB);
    let server = scratch.serve(["--disk", "disk.img", "--workers", "2"]);
    let common =
        ["--rw=randrw", "--iodepth=16", "--verify=crc32c", "--verify_fatal=1", "--size=24M", "--io_size=24M"];
    let said = run(fio(&scratch, &scratch.uri("disk/disk.img"), &common).args(options));
    assert!(said.contains("err= 0"), "{said}");
    server.stop_quietly();
}

#[test]
fn fio_verifies_random_writes_of_one_sector() {
    fio_verifies(&["--bs=512", "--io_size=6M"]);
}

#[test]
fn fio_verifies_random_writes_of_a_page_with_flushes() {
    fio_verifies(&["--bs=4k", "--fsync=16"]);
}

#[test]
fn fio_verifies_random_writes_of_seven_sectors() {
    fio_verifies(&["--bs=3584"]);
}

#[test]
fn fio_verifies_random_writes_of_any_length_at_any_byte() {
    fio_verifies(&["--bsrange=64-30000", "--bs_unaligned=1", "--io_size=12M"]);
}

#[test]
fn a_unix_socket_and_tcp_serve_the_same_volumes_at_once() {
    let scratch = Scratch::new();
    let content = scratch.noise("disk.img", 1 << 20, 3);
    let server = scratch.serve(["--disk", "disk.img", "--nbd", "127.0.0.1:0"]);
    let [unix, tcp] = &server.addresses[..] else { panic!("{:?}", server.addresses) };
    assert_eq!(*unix, format!("nbd+unix:///?socket={}", scratch.at("socket")));
    assert!(tcp.starts_with("nbd://127.0.0.1:") && !tcp.ends_with(":0"), "the port is told: {tcp}");
    for address in [unix.clone(), format!("{tcp}/disk/disk.img")] {
        run(tool("nbdcopy").args([&address, &scratch.at("copy")]));
        assert!(scratch.read("copy") == content, "{address}");
    }
    server.stop_quietly();
    assert!(!scratch.path("socket").exists(), "the socket goes with its server");
}

#[test]
fn tcp_for_others_wants_tls_or_a_word() {
    let scratch = Scratch::new();
    scratch.sparse("disk.img", MIB);
    let said = scratch.misused(["--disk", "disk.img", "--nbd", "0.0.0.0:0"]);
    assert!(said.contains("other machines could read and write the volumes"), "{said}");
    let server = scratch.serve(["--disk", "disk.img", "--nbd", "0.0.0.0:0", "--insecure"]);
    assert!(server.addresses[1].starts_with("nbd://0.0.0.0:"));
    server.stop_quietly();
}

/// An authority and a server's certificate.
fn certificates(scratch: &Scratch) -> String {
    let folder = scratch.at("pki");
    fs::create_dir(&folder).expect("a folder");
    let certtool = |args: &str| run(tool("certtool").current_dir(&folder).args(args.split(' ')));
    scratch.write("pki/ca.info", "cn = Test authority\nca\ncert_signing_key\nexpiration_days = 30\n");
    scratch.write(
        "pki/server.info",
        "cn = localhost\ndns_name = localhost\nip_address = 127.0.0.1\ntls_www_server\nencryption_key\nsigning_key\n\
         expiration_days = 30\n",
    );
    for who in ["ca", "server"] {
        certtool(&format!("--generate-privkey --key-type=rsa --bits=2048 --outfile={who}-key.pem"));
    }
    certtool("--generate-self-signed --load-privkey=ca-key.pem --template=ca.info --outfile=ca-cert.pem");
    certtool(
        "--generate-certificate --load-ca-certificate=ca-cert.pem --load-ca-privkey=ca-key.pem \
         --load-privkey=server-key.pem --template=server.info --outfile=server-cert.pem",
    );
    folder
}

#[test]
fn with_certificates_clients_must_use_tls() {
    let scratch = Scratch::new();
    let content = scratch.noise("disk.img", 1 << 20, 4);
    let folder = certificates(&scratch);
    let server = scratch.serve(["--disk", "disk.img", "--nbd", "127.0.0.1:0", "--tls-certificates", &folder]);
    let address = server.addresses[1].replace("127.0.0.1", "localhost");
    assert!(address.starts_with("nbds://"), "{address}");
    run(tool("nbdcopy")
        .args([&format!("{address}/disk/disk.img?tls-certificates={folder}"), &scratch.at("copy")]));
    assert!(scratch.read("copy") == content);
    let clear = address.replace("nbds://", "nbd://");
    run_refused(tool("nbdinfo").arg(&clear));
    // One whose authority is another does not trust this server, and is not served.
    let other = Scratch::new();
    let folder = certificates(&other);
    run_refused(tool("nbdinfo").arg(format!("{address}/?tls-certificates={folder}")));
    assert!(server.stop().status.success());
    let said = scratch.refused(["--disk", "disk.img", "--tls-certificates", &scratch.at("nowhere")]);
    assert!(said.contains("server-cert.pem"), "{said}");
}

#[test]
fn libnbd_starts_it_by_socket_activation() {
    let scratch = Scratch::new();
    let content = scratch.noise("disk.img", 3 << 20, 5);
    let mut nbdcopy = tool("nbdcopy");
    nbdcopy.env("BLOCKWORK_RUN_DIR", scratch.at("run")).current_dir(scratch.path(""));
    run(nbdcopy.args(["--", "[", BLOCKWORK, "serve", "--disk", "disk.img", "]", "copy.img"]));
    assert!(scratch.read("copy.img") == content);
}

#[test]
fn systemd_starts_it_by_socket_activation_and_keeps_the_socket() {
    let scratch = Scratch::new();
    let content = scratch.noise("disk.img", 3 << 20, 6);
    let socket = scratch.at("activated");
    let mut activate = tool("systemd-socket-activate");
    activate.args(["--listen", &socket, "--setenv", &format!("BLOCKWORK_RUN_DIR={}", scratch.at("run"))]);
    // As in a container.
    activate.arg("/usr/bin/python3").args(without_call(PIDFD_GETFD));
    activate.args(["serve", "--disk", &scratch.at("disk.img")]);
    let server = Background::start(&mut activate);
    until("systemd listens", || fs::exists(&socket).unwrap());
    let uri = format!("nbd+unix:///disk/disk.img?socket={socket}");
    run(tool("nbdcopy").args([&uri, &scratch.at("copy")]));
    assert!(scratch.read("copy") == content);
    server.signal(Signal::TERM);
    let said = server.succeed();
    assert!(said.contains(&format!("ready nbd+unix:///?socket={socket}")), "{said}");
    assert!(fs::exists(&socket).unwrap(), "it is not the server's to remove");
}

#[test]
fn what_was_inherited_and_is_no_listening_socket_is_told_by_its_number() {
    let scratch = Scratch::new();
    let mut activate = tool("bash");
    activate.current_dir(scratch.path("")).env("BLOCKWORK_RUN_DIR", scratch.run_dir());
    activate.args([
        "-c",
        "LISTEN_FDS=1 LISTEN_PID=$$ exec \"$0\" serve --disk memory:1M 3</dev/null",
        BLOCKWORK,
    ]);
    let said = run_refused(&mut activate);
    assert!(said.contains("inherited descriptor 3: "), "{said}");
}

#[test]
fn sigterm_under_load_keeps_every_write_that_was_acknowledged() {
    let scratch = Scratch::new();
    scratch.sparse("disk.img", 64 * MIB);
    let server = scratch.serve(["--disk", "disk.img"]);
    // Block i is filled with its number; the number is printed once the write is acknowledged. It never flushes.
    let script = format!(
        "import nbd, struct, sys\n\
         h = nbd.NBD()\n\
         h.connect_uri({:?})\n\
         def write(i):\n\
         \x20   def done(error):\n\
         \x20       if error.value == 0 if hasattr(error, 'value') else error == 0:\n\
         \x20           sys.stdout.write('%d\\n' % i); sys.stdout.flush()\n\
         \x20       return 1\n\
         \x20   h.aio_pwrite(nbd.Buffer.from_bytearray(bytearray(struct.pack('<Q', i + 1) * 512)), i * 4096, done)\n\
         try:\n\
         \x20   for i in range(16384):\n\
         \x20       write(i)\n\
         \x20       while h.aio_in_flight() >= 32: h.poll(-1)\n\
         \x20   while True: h.poll(-1)\n\
         except nbd.Error as e:\n\
         \x20   print('ended', e.errnum)\n",
        scratch.uri("")
    );
    let mut client = Background::start(tool("/usr/bin/python3").args(["-c", &script]));
    let mut lines = Lines::of(client.stdout());
    let mut acknowledged: BTreeSet<u64> =
        lines.by_ref().take(500).map(|line| line.parse().expect("a number")).collect();
    assert_eq!(acknowledged.len(), 500, "{:?}", client.finish());
    let ended = server.stop();
    assert!(ended.status.success(), "{}", ended.stderr);
    acknowledged.extend(lines.filter_map(|line| line.parse::<u64>().ok()));
    let disk = scratch.read("disk.img");
    for block in &acknowledged {
        let at = usize::try_from(block * 4096).unwrap();
        let expected: Vec<u8> = (block + 1).to_le_bytes().repeat(512);
        assert!(disk[at..at + 4096] == expected, "block {block} of {}", acknowledged.len());
    }
}

#[test]
fn a_client_that_hangs_does_not_keep_the_server_from_ending() {
    let scratch = Scratch::new();
    scratch.sparse("disk.img", 64 * MIB);
    let server = scratch.serve(["--disk", "disk.img"]);
    let socket = format!("unix:{}", scratch.at("socket"));
    let mut hanging = nbdload();
    hanging.args([&socket, "--rw", "randread", "--bs", "64k", "--depth", "64", "--seconds", "100"]);
    let hanging = Background::start(&mut hanging);
    // It is in the middle of its work: the server has read for it.
    let mut reads = Raw::open(&scratch.at("socket"));
    let uring_reads = |server: &Server| {
        let path = format!("/proc/{}/io", server.pid());
        let io = fs::read_to_string(path).expect("it runs");
        io.lines()
            .find_map(|line| line.strip_prefix("wchar: "))
            .and_then(|n| n.parse::<u64>().ok())
            .unwrap_or(0)
    };
    let start = uring_reads(&server);
    until("the hanging client has been served", || {
        let status = fs::read_to_string(format!("/proc/{}/stat", hanging.pid())).expect("it runs");
        let cpu: u64 = status
            .rsplit(')')
            .next()
            .unwrap()
            .split_whitespace()
            .skip(11)
            .take(2)
            .map(|n| n.parse::<u64>().unwrap())
            .sum();
        cpu >= 3 || uring_reads(&server) > start + (1 << 30)
    });
    hanging.signal(Signal::STOP);
    // Another, which has asked for something and never looks.
    use std::io::Write;
    reads.stream.write_all(&Raw::request(0, 0, 1, 0, 4 << 20)).expect("the server reads");
    let ended = server.stop();
    assert!(ended.status.success(), "{}\n{}", ended.status, ended.stderr);
    assert!(ended.took < Duration::from_secs(20), "it took {:?}", ended.took);
}

#[test]
fn sigusr1_prints_statistics_while_it_serves_on() {
    let scratch = Scratch::new();
    scratch.sparse("disk.img", 16 * MIB);
    let server = scratch.serve(["--disk", "disk.img", "--json", "--stats"]);
    let write = |n: &str| {
        load(&scratch.at("socket"), &["--rw", "randwrite", "--bs", "4k", "--depth", "4", "--ios", n]);
    };
    write("100");
    server.signal(Signal::USR1);
    until("it prints them", || Stats::all(&server.said()).len() == 1);
    write("23");
    server.signal(Signal::USR1);
    until("it prints them again", || Stats::all(&server.said()).len() == 2);
    let ended = server.stop();
    assert!(ended.status.success());
    let bytes: Vec<u64> =
        Stats::all(&ended.stderr).iter().map(|stats| stats.count("disk.img", "write_bytes")).collect();
    assert_eq!(bytes, [100 * 4096, 123 * 4096, 123 * 4096]);
}

#[test]
fn statistics_for_people_name_the_disk_and_what_it_did() {
    let scratch = Scratch::new();
    scratch.sparse("disk.img", 16 * MIB);
    let server = scratch.serve(["--disk", "disk.img", "--stats"]);
    load(&scratch.at("socket"), &["--rw", "randwrite", "--bs", "4k", "--ios", "64"]);
    let ended = server.stop();
    assert!(ended.stderr.starts_with("disk.img (leaf, 259:0)\n"), "{}", ended.stderr);
    assert!(ended.stderr.contains("writes 64 (256.0 KiB)"), "{}", ended.stderr);
    assert!(ended.stderr.contains("latency") && ended.stderr.contains("p99.9"), "{}", ended.stderr);
}

#[test]
fn sequential_reads_of_4_kib_at_depth_32_become_few_reads_of_the_disk() {
    // qemu-storage-daemon makes 131,418 reads of these 512 MiB.
    let scratch = Scratch::new();
    scratch.sparse("disk.img", 512 * MIB);
    let server = scratch.serve(["--disk", "disk.img", "--stats", "--json"]);
    let args = ["--rw", "read", "--bs", "4k", "--depth", "32", "--bytes", "512m"];
    assert_eq!(load(&scratch.at("socket"), &args)["ios"], 131_072);
    let stats = server.stop_for_stats();
    let reads = stats.count("disk.img", "reads");
    assert!(reads <= 2048, "{reads} reads");
    assert!(stats.count("disk.img", "read_bytes") >= 512 * MIB);
}

#[test]
fn sequential_reads_of_4_kib_one_by_one_are_read_ahead() {
    // The same bound for a quarter of the length.
    let scratch = Scratch::new();
    scratch.sparse("disk.img", 128 * MIB);
    let server = scratch.serve(["--disk", "disk.img", "--set", "read_ahead_kb=1024", "--stats", "--json"]);
    load(&scratch.at("socket"), &["--rw", "read", "--bs", "4k", "--depth", "1", "--bytes", "128m"]);
    let stats = server.stop_for_stats();
    let reads = stats.count("disk.img", "reads");
    assert!(reads <= 512, "{reads} reads");
    assert!(stats.count("disk.img", "read_ahead_hit") > 30_000);
}

#[test]
fn clients_of_512_bytes_share_the_blocks_of_a_4096_byte_device() {
    let scratch = Scratch::new();
    let backing = scratch.sparse("disk.img", 8 * MIB);
    let looped = Loop::with(&["--direct-io=on", "--sector-size=4096"], &backing);
    let server = scratch.serve(["--disk", &looped.device, "--workers", "2", "--stats", "--json"]);
    // Each of eight neighbours in a block is written by itself, some at the same time as others; each must keep what it got.
    let job =
        ["--rw=randwrite", "--bs=512", "--iodepth=16", "--size=128k", "--verify=crc32c", "--verify_fatal=1"];
    let said = run(&mut fio(&scratch, &scratch.uri(""), &job));
    assert!(said.contains("err= 0"), "{said}");
    let stats = server.stop_for_stats();
    assert_eq!(stats.count(&looped.device, "errors"), 0);
    assert!(stats.count(&looped.device, "unaligned") >= 256);
}

#[test]
fn cache_modes_decide_what_is_durable_without_a_flush() {
    for (mode, syncs) in
        [("none", 1), ("writeback", 1), ("directsync", 64), ("writethrough", 64), ("unsafe", 0)]
    {
        let scratch = Scratch::new();
        scratch.sparse("disk.img", MIB);
        // With fua=flush a write that must be durable has a flush behind it, which is counted.
        let disk = format!("disk.img,cache={mode},fua=flush");
        let server = scratch.serve(["--disk", &disk, "--stats", "--json"]);
        let socket = scratch.at("socket");
        load(
            &socket,
            &["--rw", "write", "--bs", "4k", "--depth", "1", "--bytes", "256k", "--flush-every", "64"],
        );
        let flushes = server.stop_for_stats().count("disk.img", "flushes");
        assert!(
            (syncs..syncs + 4).contains(&flushes) && (syncs > 0 || flushes == 0),
            "{mode}: {flushes} flushes"
        );
    }
}

#[test]
fn contiguous_reads_of_one_batch_are_one_read_and_nomerges_keeps_them_apart() {
    // One request of 64 x 4 KiB would not need merging: these arrive in one segment of the socket.
    let merged = |nomerges: &str| {
        let scratch = Scratch::new();
        scratch.noise("disk.img", 1 << 20, 7);
        let settings = ["--set", nomerges, "--set", "read_ahead_kb=0", "--workers", "1", "--stats", "--json"];
        let server = scratch.serve(["--disk", "disk.img"].iter().chain(&settings));
        let mut client = Raw::open(&scratch.at("socket"));
        let batch: Vec<u8> = (0..64).flat_map(|i| Raw::request(0, 0, i, i * 4096, 4096)).collect();
        use std::io::{Read, Write};
        client.stream.write_all(&batch).expect("the server reads");
        let mut answers = vec![0; 64 * (16 + 4096)];
        client.stream.read_exact(&mut answers).expect("all are answered");
        let disk = scratch.read("disk.img");
        for answer in answers.chunks(16 + 4096) {
            let cookie = u64::from_be_bytes(answer[8..16].try_into().unwrap());
            let at = usize::try_from(cookie * 4096).unwrap();
            assert!(answer[16..] == disk[at..at + 4096], "{cookie}");
        }
        drop(client);
        server.stop_for_stats().count("disk.img", "reads")
    };
    assert_eq!(merged("nomerges=0"), 1);
    assert_eq!(merged("nomerges=2"), 64);
}

#[test]
fn a_read_only_server_reads_and_writes_nothing() {
    let scratch = Scratch::new();
    partitioned(&scratch, "disk.img");
    let before = print_of(&scratch.at("disk.img"));
    let server = scratch.serve(["--disk", "disk.img", "--read-only"]);
    let said = python(&format!(
        "h = connect({:?})\n\
         assert h.is_read_only()\n\
         assert len(h.pread(1 << 20, 0)) == 1 << 20\n\
         for call in [lambda: h.pwrite(b'x' * 512, 0), lambda: h.trim(4096, 0), lambda: h.zero(4096, 0)]:\n\
         \x20   print(errno.errorcode[refused(call)])\n\
         h.shutdown()\n",
        scratch.uri("disk/disk.img")
    ));
    assert_eq!(said.lines().collect::<Vec<_>>(), ["EPERM"; 3]);
    run(tool("nbdcopy").args([&scratch.uri("disk/disk.img/1"), "null:"]));
    // Two readers of one disk do each other no harm.
    let second = Server::start(scratch.blockwork(["serve", "--nbd", "unix:second"]).args([
        "--disk",
        "disk.img",
        "--read-only",
    ]));
    second.stop_quietly();
    server.stop_quietly();
    assert_eq!(print_of(&scratch.at("disk.img")), before);
}

#[test]
fn wrong_usage_says_what_to_do() {
    let scratch = Scratch::new();
    scratch.sparse("disk.img", MIB);
    let done = output(&mut scratch.blockwork(["serve", "--disk", "disk.img"]));
    assert_eq!(done.status.code(), Some(2));
    let said = String::from_utf8(done.stderr).unwrap();
    assert!(said.contains("nothing to serve by: add --nbd unix:PATH"), "{said}");
    let said = scratch.misused(["--disk", "disk.img", "--nbd", "unix:"]);
    assert!(said.contains("\"unix:\" is nowhere to listen at; expected HOST:PORT"), "{said}");
    let said = scratch.misused(["--disk", "disk.img", "--set", "nomerges=7"]);
    assert!(said.contains("--set nomerges=7: "), "{said}");
    let said = scratch.misused(["--disk", "disk.img", "--set", "no_merges=2"]);
    assert!(said.contains("--set no_merges=2: "), "{said}");
    let said = scratch.misused(["--disk", "disk.img,colour=red"]);
    assert!(said.contains("colour"), "{said}");
    let said = scratch.misused(["--disk", "null:12Q"]);
    assert!(said.contains("null:12Q"), "{said}");
    scratch.write("refused", "a file that is no socket");
    let said = scratch.refused(["--disk", "disk.img"]);
    assert!(said.contains("refused: exists and is not a socket"), "{said}");
}

#[test]
fn an_address_that_other_machines_reach_is_refused_with_what_allows_it() {
    let scratch = Scratch::new();
    let done = output(&mut scratch.blockwork(["serve", "--disk", "memory:1M", "--nbd", "0.0.0.0:0"]));
    let said = both(&done);
    assert!(said.contains("--tls-certificates FOLDER") && said.contains("--insecure"), "{said}");
}

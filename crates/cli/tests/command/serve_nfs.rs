//! Disks on a real NFS server (nfs-ganesha): served over NBD, while the server loses power, hangs and comes back; judged by fio's
//! checksums, and by the file as the server has it. Needs root, for a network of its own.

use std::os::unix::fs::PermissionsExt;

use crate::support::nbd::{fio, load};
use crate::support::nfs::NfsServer;
use crate::support::{Background, Scratch, Server, run, run_refused, tool, until};

const MIB: u64 = 1 << 20;
/// Versions of NFS, as an address names them.
const VERSIONS: [&str; 2] = ["vers=3", "vers=4"];

/// `blockwork serve` of a file of the server, over NBD.
fn serve(scratch: &Scratch, nfs: &NfsServer, url: &str) -> Server {
    let mut command =
        scratch.blockwork(["serve", "--stats", "--json", "--nbd", "unix:socket", "--disk", url]);
    Server::start(&mut nfs.beside(command.args(["--workers", "2"])))
}

#[test]
fn a_disk_on_a_server_holds_what_was_written_to_it() {
    let scratch = Scratch::new();
    let nfs = NfsServer::start(&scratch);
    // With memory for what is uncommitted that has room for all of it, and for one request.
    for (seed, query, room, version) in [
        (5, "?nconnect=2", 64 * MIB, "4.0"),
        (6, "?nconnect=2&uncommitted=1M", MIB, "4.0"),
        (7, "?nconnect=2&vers=3", 64 * MIB, "3"),
        (8, "?nconnect=2&vers=3&uncommitted=1M", MIB, "3"),
    ] {
        scratch.sparse("export/disk.img", 32 * MIB);
        scratch.noise("noise", 32 << 20, seed);
        let url = nfs.url("disk.img", query);
        let listed = run(&mut nfs.beside(&scratch.blockwork(["scan", &url])));
        assert!(listed.contains("disk/disk.img ") && listed.contains("32M"), "{listed}");
        let server = serve(&scratch, &nfs, &url);
        assert_eq!(uncommitted(server.pid()), room);
        assert!(
            server.said().contains(&format!("it is used by NFS {version}, without locks")),
            "{}",
            server.said()
        );
        let (uri, noise) = (scratch.uri(""), scratch.at("noise"));
        let copy = ["convert", "-n", "-t", "writeback", "-f", "raw", "-O", "raw", &noise, &uri];
        run(tool("qemu-img").args(copy));
        // Through the disk, and, after the flush that ends the copy, on the server.
        run(tool("qemu-img").args(["compare", "-f", "raw", "-F", "raw", &noise, &uri]));
        assert!(scratch.read("export/disk.img") == scratch.read("noise"), "the server has other data");
        let stats = server.stop_for_stats();
        let writes = stats.count(&format!("export/disk.img{query}"), "writes");
        // Each of the largest request, but for a few at the edges of the copy's own pieces.
        assert!((32..=64).contains(&writes), "{writes} WRITE calls for 32 MiB");
    }
}

/// Memory of a process for what an NFS server may still forget, bytes.
fn uncommitted(pid: u32) -> u64 {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let arenas = maps.lines().filter(|line| line.contains("memfd:blockwork-uncommitted"));
    let bytes = arenas.map(|line| {
        let (start, rest) = line.split_once('-').unwrap();
        let end = rest.split_whitespace().next().unwrap();
        u64::from_str_radix(end, 16).unwrap() - u64::from_str_radix(start, 16).unwrap()
    });
    bytes.sum()
}

/// The server's disk is a file system that loses, with its power, what was not written to it: there are holes then where there was data.
fn lose_nothing(version: &str) {
    let scratch = Scratch::new();
    let mut nfs = NfsServer::start_on_disk(&scratch, 256 * MIB);
    nfs.within(&format!("truncate -s 128M {} && sync", nfs.path("disk.img")));
    let server = serve(&scratch, &nfs, &nfs.url("disk.img", &format!("?timeo=100&{version}")));
    let uri = scratch.uri("");
    let job = [
        "--rw=randwrite",
        "--bsrange=4k-64k",
        "--iodepth=16",
        "--size=128m",
        "--verify=crc32c",
        "--fsync=64",
    ];
    // At a rate that leaves time for what happens meanwhile, on any machine.
    let more = ["--end_fsync=1", "--verify_backlog=512", "--rate=,16m"];
    let mut fio = Background::start(fio(&scratch, &uri, &job).args(more));
    let file = nfs.path_outside("disk.img");
    let mut lost = 0;
    for step in 1..=3 {
        until("fio has written more", || !fio.is_running() || allocated(&file) > step * 12 * MIB);
        assert!(fio.is_running(), "fio is too fast for this test, or has read what it did not write");
        if step == 2 {
            nfs.freeze();
            until("the silence is noticed", || server.said().contains("has not answered"));
            nfs.thaw();
        } else {
            let before = allocated(&file);
            nfs.lose_power(&scratch);
            lost += before.saturating_sub(allocated(&file));
        }
        until("the server is heard again", || {
            server.said().matches("answers again").count() >= step as usize
        });
    }
    fio.succeed();
    run(tool("qemu-img").args(["compare", "-f", "raw", "-F", "raw", &file, &uri]));
    assert!(lost > 0, "the server has lost nothing, so this test shows nothing");
    let said = server.said();
    assert!(said.contains("bytes are sent again that the server may have forgotten"), "{said}");
    let ended = server.stop();
    assert!(ended.status.success(), "{}", ended.stderr);
}

#[test]
fn a_server_of_version_3_that_loses_power_and_one_that_hangs_lose_nothing() {
    lose_nothing("vers=3");
}

#[test]
fn a_server_of_version_4_that_loses_power_and_one_that_hangs_lose_nothing() {
    lose_nothing("vers=4");
}

#[test]
fn the_version_is_what_the_server_speaks() {
    let scratch = Scratch::new();
    let mut nfs = NfsServer::start(&scratch);
    scratch.sparse("export/disk.img", MIB);
    let scan = |nfs: &NfsServer, query| nfs.beside(&scratch.blockwork(["scan", &nfs.url("disk.img", query)]));
    for (spoken, version, other, words) in [
        ("3", "3", "?vers=4", ["PROG_MISMATCH", "see which services, versions"]),
        ("4", "4.0", "?vers=3", ["the mount protocol at 127.0.0.1:20048", "see that the server runs"]),
    ] {
        nfs.kill();
        nfs.speak(spoken);
        nfs.start_again();
        let server = serve(&scratch, &nfs, &nfs.url("disk.img", ""));
        load(&scratch.at("socket"), &["--rw", "write", "--bs", "4k", "--depth", "8", "--bytes", "256k"]);
        let ended = server.stop();
        assert!(ended.stderr.contains(&format!("used by NFS {version},")), "{}", ended.stderr);
        let said = run_refused(&mut scan(&nfs, other));
        assert!(words.iter().all(|word| said.contains(word)), "{spoken}: {said}");
        // Whatever is spoken, what is wrong with the name is told.
        let said = run_refused(&mut nfs.beside(&scratch.blockwork(["scan", &nfs.url("none.img", "")])));
        assert!(said.contains("NFSERR_NOENT"), "{spoken}: {said}");
    }
}

/// What the server's file takes on disk, or will, bytes.
fn allocated(file: &str) -> u64 {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(file).expect("it is there").blocks() * 512
}

#[test]
fn cache_modes_decide_what_is_durable_without_a_flush() {
    let scratch = Scratch::new();
    let nfs = NfsServer::start(&scratch);
    scratch.sparse("export/disk.img", MIB);
    for (mode, stable, flushed) in [
        ("none", 0, true),
        ("writeback", 0, true),
        ("directsync", 64, true),
        ("writethrough", 64, true),
        ("unsafe", 0, false),
    ] {
        let server = serve(&scratch, &nfs, &nfs.url("disk.img", &format!(",cache={mode}")));
        let job = ["--rw", "write", "--bs", "4k", "--depth", "1", "--bytes", "256k", "--flush-every", "64"];
        load(&scratch.at("socket"), &job);
        let stats = server.stop_for_stats();
        let count = |what| stats.count("export/disk.img", what);
        assert_eq!((count("writes"), count("fua_writes")), (64, stable), "{mode}");
        assert_eq!(count("flushes") > 0, flushed, "{mode}");
    }
}

#[test]
fn what_cannot_be_a_disk_is_refused_with_what_to_do() {
    let scratch = Scratch::new();
    let nfs = NfsServer::start(&scratch);
    std::fs::create_dir(scratch.path("export/folder")).expect("a folder");
    scratch.sparse("export/folder/small.img", 100);
    link(&scratch, "/elsewhere/disk.img", "absolute.img");
    link(&scratch, "../noise", "above.img");
    link(&scratch, "circle.img", "circle.img");
    let refused = |url: &str| run_refused(&mut nfs.beside(&scratch.blockwork(["scan", url])));
    for (url, words) in [
        (nfs.url("none.img", ""), ["NFSERR_NOENT", "see that the file is there"]),
        (nfs.url("folder", ""), ["is a folder", "regular file"]),
        (nfs.url("folder/small.img", ""), ["100 bytes", "truncate"]),
        ("nfs://127.0.0.1/elsewhere/a".to_owned(), ["does not export /elsewhere", "showmount"]),
        ("nfs://127.0.0.1:9/a?mountport=9".to_owned(), ["127.0.0.1:9", "see that the server runs"]),
        (nfs.url("a", "?vers=4.1"), ["vers=4.1", "3 or 4.0"]),
        (nfs.url("a", "?locks=on"), ["locks=on", "nconnect="]),
        (nfs.url("absolute.img", ""), ["leads to /elsewhere/disk.img", "own path"]),
        (nfs.url("above.img", ""), ["above the export", "own path"]),
        (nfs.url("circle.img", ""), ["leads to circle.img", "own path"]),
        (nfs.url("none.img", "?vers=4"), ["NFSERR_NOENT", "see that the file is there"]),
        (nfs.url("folder", "?vers=4"), ["is a folder", "regular file"]),
        (nfs.url("folder/small.img", "?vers=4"), ["100 bytes", "truncate"]),
        (nfs.url("absolute.img", "?vers=4"), ["leads to /elsewhere/disk.img", "own path"]),
        (nfs.url("circle.img", "?vers=4"), ["leads to circle.img", "own path"]),
        ("nfs://127.0.0.1/elsewhere/a?vers=4".to_owned(), ["NFSERR_NOENT", "the path right"]),
        ("nfs://127.0.0.1:9/a?vers=4".to_owned(), ["127.0.0.1:9", "see that the server runs"]),
    ] {
        let said = refused(&url);
        assert!(words.iter().all(|word| said.contains(word)), "{url}: {said}");
    }
}

#[test]
fn of_a_name_with_several_addresses_each_is_tried_until_there_is_an_answer() {
    let scratch = Scratch::new();
    let mut nfs = NfsServer::start(&scratch);
    // Which comes first is the resolver's choice: one of the two is dead, and once both.
    let names = scratch.write("hosts", "127.0.0.2 store\n127.0.0.3 store\n");
    // A resolver may look for no address where a machine has none but its loopback's.
    nfs.within(&format!("mount --bind {names} /etc/hosts && ip address add 192.0.2.9/32 dev lo"));
    scratch.sparse("export/disk.img", 4 * MIB);
    let scan = |nfs: &NfsServer, query: &str| {
        let url = nfs.url("disk.img", query).replace("127.0.0.1", "store");
        nfs.beside_with_its_mounts(&scratch.blockwork(["scan", &url]))
    };
    for address in ["127.0.0.2", "127.0.0.3"] {
        nfs.kill();
        nfs.listen_at(address);
        nfs.start_again();
        for query in ["?vers=4", "?vers=3&mountport=20048"] {
            let listed = run(&mut scan(&nfs, query));
            assert!(listed.contains("disk/disk.img "), "{listed}");
        }
    }
    nfs.kill();
    let said = run_refused(&mut scan(&nfs, "?vers=4"));
    let words =
        ["127.0.0.2", "127.0.0.3", "the other addresses", "Connection refused", "see that the server runs"];
    assert!(words.iter().all(|word| said.contains(word)), "{said}");
}

/// A symbolic link in the export.
fn link(scratch: &Scratch, to: &str, name: &str) {
    std::os::unix::fs::symlink(to, scratch.path("export").join(name)).expect("a link");
}

#[test]
fn a_file_is_found_by_every_name_that_leads_to_it() {
    let scratch = Scratch::new();
    let nfs = NfsServer::start(&scratch);
    for folder in ["export/Gäste 1", "export/folder"] {
        std::fs::create_dir(scratch.path(folder)).expect("a folder");
    }
    scratch.sparse("export/Gäste 1/100%.img", MIB);
    scratch.sparse("export/folder/disk.img", 2 * MIB);
    link(&scratch, "folder", "current");
    link(&scratch, "current/./../folder/disk.img", "disk.img");
    let disk = nfs.path("disk.img");
    for (url, size) in [
        (nfs.url("Gäste 1/100%25.img", ""), "1M"),
        (nfs.url("G%C3%A4ste%201/100%25.img", ""), "1M"),
        (nfs.url("folder/disk.img", ""), "2M"),
        (nfs.url("current/disk.img", ""), "2M"),
        (nfs.url("disk.img", ""), "2M"),
        (format!("nfs://[::1]{disk}"), "2M"),
        (format!("nfs://[::1]:2049{disk}?mountport=20048"), "2M"),
        (format!("nfs://localhost:2049{disk}?mountport=20048"), "2M"),
    ] {
        for version in VERSIONS {
            let url = format!("{url}{}{version}", if url.contains('?') { '&' } else { '?' });
            let found = run(&mut nfs.beside(&scratch.blockwork(["scan", &url])));
            assert!(found.contains(size), "{url}: {found}");
        }
    }
    // With the I/O over IPv6 as well; the file ends within a page, and with a hole.
    let mut content = scratch.noise("noise", (2 << 20) + 1536, 3);
    content[1 << 20..].fill(0);
    scratch.write("noise", &content);
    run(tool("cp").args(["--sparse=always", &scratch.at("noise"), &scratch.at("export/folder/disk.img")]));
    for version in VERSIONS {
        let server = serve(&scratch, &nfs, &format!("nfs://[::1]{disk}?{version}"));
        let same = ["compare", "-f", "raw", "-F", "raw", &scratch.at("noise"), &scratch.uri("")];
        run(tool("qemu-img").args(same));
        assert!(server.stop().status.success());
    }
}

#[test]
fn who_asks_and_the_export_decide_what_may_be_done() {
    let scratch = Scratch::new();
    let nfs = NfsServer::start(&scratch);
    for (name, mode) in [("own.img", 0o600), ("group.img", 0o640)] {
        let path = scratch.sparse(&format!("export/{name}"), MIB);
        std::os::unix::fs::chown(&path, Some(1234), Some(1234)).expect("we are root");
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("we are root");
    }
    let refused = |url: &str| {
        run_refused(&mut nfs.beside(&scratch.blockwork(["serve", "--nbd", "unix:socket", "--disk", url])))
    };
    for version in VERSIONS {
        serve(&scratch, &nfs, &nfs.url("own.img", &format!("?uid=1234&gid=99&{version}"))).stop();
        let said = refused(&nfs.url("own.img", &format!("?uid=99&gid=1234&{version}")));
        assert!(said.contains("does not let it be read; see who may use the file there"), "{said}");
        let group = nfs.url("group.img", &format!("?uid=99&gid=1234&{version}"));
        let said = refused(&group);
        assert!(said.contains("does not let it be written; open it with ',ro'"), "{said}");
        serve(&scratch, &nfs, &(group + ",ro")).stop();
    }
}

#[test]
fn an_export_that_nobody_may_write_is_read() {
    let scratch = Scratch::new();
    let nfs = NfsServer::start_read_only(&scratch);
    scratch.noise("export/disk.img", 1 << 20, 9);
    for version in VERSIONS {
        let url = nfs.url("disk.img", &format!("?{version}"));
        let serving = scratch.blockwork(["serve", "--nbd", "unix:socket", "--disk", &url]);
        let said = run_refused(&mut nfs.beside(&serving));
        assert!(said.contains("does not let it be written") && said.contains("exported read-only"), "{said}");
        let server = serve(&scratch, &nfs, &(url + ",ro"));
        let (there, here) = (scratch.at("export/disk.img"), scratch.uri(""));
        run(tool("qemu-img").args(["compare", "-f", "raw", "-F", "raw", &there, &here]));
        server.stop();
    }
}

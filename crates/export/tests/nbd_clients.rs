//! Real clients against the real server: nbdinfo, nbdcopy, qemu-img, qemu-io, fio, and libnbd from Python.

mod nbd_support;

use std::process::Command;

use nbd_support::{Disk, Rig, file_of_noise, python, run, try_run};

const MIB: usize = 1 << 20;

#[test]
fn nbdinfo_shows_every_export_with_its_size_and_flags() {
    let rig = Rig::new(&[Disk::new("one", "memory:64M"), Disk::new("two", "memory:1M").read_only()]);
    let list = run(Command::new("nbdinfo").args(["--list", "--json", &rig.uri("")]));
    for part in [
        "\"export-name\": \"one\"",
        "\"export-name\": \"two\"",
        "\"export-size\": 67108864",
        "base:allocation",
    ] {
        assert!(list.contains(part), "{part} in {list}");
    }
    let one = run(Command::new("nbdinfo").args(["--json", &rig.uri("one")]));
    for part in [
        "\"is_read_only\": false",
        "\"can_flush\": true",
        "\"can_fua\": true",
        "\"can_multi_conn\": true",
        "\"can_trim\": true",
        "\"can_zero\": true",
        "\"can_fast_zero\": true",
        "\"can_df\": true",
        "\"can_cache\": true",
        "\"block_size_minimum\": 1",
        "\"block_size_maximum\": 33554432",
        "\"protocol\": \"newstyle-fixed\"",
        "\"structured\": true",
    ] {
        assert!(one.contains(part), "{part} in {one}");
    }
    let two = run(Command::new("nbdinfo").args(["--json", &rig.uri("two")]));
    for part in
        ["\"is_read_only\": true", "\"can_trim\": false", "\"can_zero\": false", "\"can_flush\": true"]
    {
        assert!(two.contains(part), "{part} in {two}");
    }
    assert!(!try_run(Command::new("nbdinfo").arg(rig.uri("three"))).status.success());
}

#[test]
fn nbdcopy_takes_a_file_there_and_back() {
    let rig = Rig::new(&[Disk::new("d", "memory:80M")]);
    let (from, to) = (rig.path("from"), rig.path("to"));
    let noise = file_of_noise(&from, 70 * MIB);
    run(Command::new("nbdcopy").arg(&from).arg(rig.uri("d")));
    run(Command::new("nbdcopy").arg(rig.uri("d")).arg(&to));
    let back = std::fs::read(&to).unwrap();
    assert!(back[..noise.len()] == noise[..]);
    assert!(back[noise.len()..].iter().all(|byte| *byte == 0));
}

#[test]
fn qemu_img_finds_a_copy_identical_and_maps_its_holes() {
    let rig = Rig::with(&[Disk::new("d", "memory:64M")], 2, |_| {});
    let image = rig.path("image");
    let noise = file_of_noise(&image, 8 * MIB);
    let mut sparse = noise.clone();
    sparse.resize(64 * MIB, 0);
    std::fs::write(&image, &sparse).unwrap();
    run(Command::new("qemu-img")
        .args(["convert", "-n", "-f", "raw", "-O", "raw"])
        .arg(&image)
        .arg(rig.uri("d")));
    let said = run(Command::new("qemu-img")
        .args(["compare", "-f", "raw", "-F", "raw"])
        .arg(&image)
        .arg(rig.uri("d")));
    assert!(said.contains("Images are identical."), "{said}");
    let map = run(Command::new("nbdinfo").args(["--map", &rig.uri("d")]));
    assert!(map.contains("hole,zero"), "{map}");
}

#[test]
fn qemu_io_reads_back_what_it_wrote_discarded_and_zeroed() {
    let rig = Rig::new(&[Disk::new("d", "memory:64M")]);
    let script = [
        "write -P 0x11 0 1M",
        "write -P 0x22 777 12345",
        "write -f -P 0x33 2M 64k",
        "read -P 0x11 0 777",
        "read -P 0x22 777 12345",
        "read -P 0x11 13122 100000",
        "read -P 0x33 2M 64k",
        "write -z 4k 8k",
        "read -P 0 4k 8k",
        "write -z -u 512k 64k",
        "read -P 0 512k 64k",
        "discard 256k 256k",
        "read 256k 256k",
        "flush",
        "aio_write -P 0x44 8M 4M",
        "aio_write -P 0x55 12M 32M",
        "aio_flush",
        "read -P 0x44 8M 4M",
        "read -P 0x55 12M 32M",
    ];
    let mut command = Command::new("qemu-io");
    command.args(["-f", "raw"]);
    script.iter().for_each(|line| {
        command.args(["-c", line]);
    });
    let said = run(command.arg(rig.uri("d")));
    assert!(!said.contains("failed") && !said.contains("error"), "{said}");
}

#[test]
fn fio_verifies_random_writes_of_mixed_sizes() {
    for workers in [1, 2] {
        let rig = Rig::with(&[Disk::new("d", "memory:64M")], workers, |_| {});
        run(Command::new("fio").current_dir(rig.folder.path()).args([
            "--name=verify",
            "--ioengine=nbd",
            &format!("--uri={}", rig.uri("d")),
            "--rw=randwrite",
            "--bssplit=512/10:4k/50:12k/20:64k/15:1m/5",
            "--iodepth=32",
            "--size=64M",
            "--verify=crc32c",
            "--verify_fatal=1",
            "--fsync=64",
        ]));
    }
}

#[test]
fn a_file_with_direct_io_holds_what_was_written() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    std::fs::File::create(&image).unwrap().set_len(64 << 20).unwrap();
    {
        let rig = Rig::with(&[Disk::new("d", image.display().to_string())], 2, |_| {});
        let from = rig.path("from");
        file_of_noise(&from, 33 * MIB + 1536);
        run(Command::new("nbdcopy").args(["--flush"]).arg(&from).arg(rig.uri("d")));
        let back = rig.path("back");
        run(Command::new("nbdcopy").arg(rig.uri("d")).arg(&back));
        let (from, back) = (std::fs::read(from).unwrap(), std::fs::read(back).unwrap());
        assert!(back[..from.len()] == from[..]);
        std::fs::write(folder.path().join("expected"), from).unwrap();
    }
    let (expected, image) =
        (std::fs::read(folder.path().join("expected")).unwrap(), std::fs::read(image).unwrap());
    assert!(image[..expected.len()] == expected[..]);
}

#[test]
fn libnbd_gets_structured_replies_and_block_status() {
    let rig = Rig::new(&[Disk::new("d", "memory:16M")]);
    python(
        &rig.uri("d"),
        r#"
h = nbd.NBD()
h.add_meta_context("base:allocation")
h.connect_uri(uri)
assert h.get_structured_replies_negotiated() and h.can_df()
h.pwrite(b"x" * 65536, 1 << 20)
h.pwrite(b"y" * 100, (4 << 20) + 50)
chunks = []
def chunk(buf, offset, status, error):
    chunks.append((len(buf), offset, status, error.value))
h.pread_structured(3000, (1 << 20) - 1000, chunk, nbd.CMD_FLAG_DF)
assert chunks == [(3000, (1 << 20) - 1000, nbd.READ_DATA, 0)], chunks
extents = []
def extent(context, offset, entries, error):
    assert context == "base:allocation"
    extents.append((offset, entries))
h.block_status(16 << 20, 0, extent)
offset, entries = extents[0]
lengths = entries[0::2]
flags = entries[1::2]
assert sum(lengths) == 16 << 20, extents
at = dict()
place = 0
for length, flag in zip(lengths, flags):
    at[place] = (length, flag)
    place += length
assert at[0][1] == 3, extents
assert any(start <= 1 << 20 < start + length and flag == 0 for start, (length, flag) in at.items()), extents
extents.clear()
h.block_status(1 << 20, 0, extent, nbd.CMD_FLAG_REQ_ONE)
assert len(extents[0][1]) == 2 and extents[0][1][0] <= 1 << 20
"#,
    );
}

#[test]
fn errors_are_the_protocols_own_and_the_connection_goes_on() {
    let rig = Rig::new(&[Disk::new("d", "memory:1M"), Disk::new("r", "memory:1M").read_only()]);
    python(
        &rig.uri("d"),
        r#"
def fails(number, call):
    try:
        call()
    except nbd.Error as error:
        assert error.errnum == number, error
    else:
        raise AssertionError("no error")
h = nbd.NBD()
h.set_strict_mode(0)
h.connect_uri(uri)
M = 1 << 20
fails(errno.EINVAL, lambda: h.pread(1, M))
fails(errno.EINVAL, lambda: h.pread(2, M - 1))
fails(errno.ENOSPC, lambda: h.pwrite(b"ab", M - 1))
fails(errno.ENOSPC, lambda: h.zero(2, M - 1))
fails(errno.EINVAL, lambda: h.trim(2, M - 1))
fails(errno.EINVAL, lambda: h.cache(2, M - 1))
fails(errno.EINVAL, lambda: h.pread(512, 0, 1 << 9))
h.cache(4096, 0)
h.pwrite(b"still here", M - 10)
assert h.pread(10, M - 10) == b"still here"
h.pwrite(b"", 0)
assert h.pread(0, 0) == b""
h.zero(0, 0)
r = nbd.NBD()
r.set_strict_mode(0)
r.connect_uri(uri.replace("///d?", "///r?"))
fails(errno.EPERM, lambda: r.pwrite(b"x" * 100000, 0))
fails(errno.EPERM, lambda: r.zero(512, 0))
fails(errno.EPERM, lambda: r.trim(512, 0))
assert r.pread(512, 0) == bytes(512)
r.flush()
"#,
    );
}

#[test]
fn simple_replies_serve_clients_that_want_no_others() {
    let rig = Rig::new(&[Disk::new("d", "memory:1M")]);
    python(
        &rig.uri("d"),
        r#"
for flags in [0, nbd.HANDSHAKE_FLAG_FIXED_NEWSTYLE, nbd.HANDSHAKE_FLAG_FIXED_NEWSTYLE | nbd.HANDSHAKE_FLAG_NO_ZEROES]:
    h = nbd.NBD()
    h.set_handshake_flags(flags)
    h.set_request_structured_replies(False)
    h.connect_uri(uri)
    assert not h.get_structured_replies_negotiated()
    assert h.get_size() == 1 << 20
    h.pwrite(b"abc" * 1000, 77)
    assert h.pread(3000, 77) == b"abc" * 1000
    h.shutdown()
"#,
    );
}

#[test]
fn many_requests_in_flight_on_four_connections_each_get_their_own_answer() {
    let rig = Rig::with(&[Disk::new("d", "memory:64M")], 2, |_| {});
    python(
        &rig.uri("d"),
        r#"
hs = []
for i in range(4):
    h = nbd.NBD()
    h.connect_uri(uri)
    hs.append(h)
buffers = []
writes = []
for n in range(400):
    h = hs[n % 4]
    size = [512, 4096, 4097, 70000][n % 4]
    buffer = nbd.Buffer.from_bytearray(bytearray([n % 256]) * size)
    writes.append((h, h.aio_pwrite(buffer, n * 131072)))
    buffers.append(size)
for h, cookie in writes:
    while not h.aio_command_completed(cookie):
        h.poll(-1)
hs[0].flush()
reads = []
for n in range(400):
    h = hs[(n + 1) % 4]
    buffer = nbd.Buffer(buffers[n])
    reads.append((h, h.aio_pread(buffer, n * 131072), buffer, n))
for h, cookie, buffer, n in reads:
    while not h.aio_command_completed(cookie):
        h.poll(-1)
    assert buffer.to_bytearray() == bytearray([n % 256]) * buffers[n], n
"#,
    );
}

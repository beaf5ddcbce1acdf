//! `logical_block_size=`: images of disks with other blocks than 512 bytes, partitioned by the tools that Linux has, on a device that has
//! those blocks; and what clients of the image are told, and read and write.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;

use serde_json::Value;
use vhostload::{Disk, Options};

use crate::support::fs::Loop;
use crate::support::nbd::python;
use crate::support::{Scratch, Server, noise, run, tool};

const MIB: usize = 1 << 20;

/// A disk of 64 MiB that sfdisk has partitioned as one of 4096-byte blocks: 8 MiB from 1 MiB on, and 4 MiB; the first holds noise.
fn image(scratch: &Scratch, label: &str) -> Vec<u8> {
    let file = scratch.sparse("disk.img", 64 * MIB as u64);
    let looped = Loop::with(&["--sector-size=4096"], &file);
    let script =
        scratch.write("script", format!("label: {label}\nstart=256, size=2048\nstart=2560, size=1024\n"));
    let sfdisk = format!("sfdisk --quiet --no-reread --no-tell-kernel {} < {script}", looped.device);
    run(tool("sh").args(["-c", &sfdisk]));
    drop(looped);
    let content = noise(8 * MIB, 7);
    let disk = OpenOptions::new().write(true).open(&file).unwrap();
    disk.write_all_at(&content, MIB as u64).unwrap();
    content
}

fn scan(scratch: &Scratch, disk: &str) -> Value {
    serde_json::from_str(&run(&mut scratch.blockwork(["scan", "--json", disk]))).expect("JSON")
}

#[test]
fn the_image_of_a_disk_with_4096_byte_blocks_is_that_disk_again() {
    for label in ["gpt", "dos"] {
        let scratch = Scratch::new();
        let mut content = image(&scratch, label);
        let disk = "disk.img,logical_block_size=4096";
        let report = scan(&scratch, disk);
        assert!(!report.to_string().contains("is the image of a disk"), "{report}");
        let server =
            scratch.serve(["--disk", disk, "--", "disk/disk.img/1", "disk/disk.img/2", "disk/disk.img"]);
        python(&format!(
            "h = connect({:?})\nopen({:?}, 'wb').write(h.pread(8 << 20, 0))\nassert h.get_size() == 8 << 20\n\
             h.pwrite(b'w' * 512, 4096 + 512)\nh.zero(1024, 8192)\nh.flush()\n\
             assert h.get_block_size(nbd.SIZE_PREFERRED) == 4096\n\
             assert connect({:?}).get_size() == 4 << 20\n",
            scratch.uri("disk/disk.img/1"),
            scratch.at("read"),
            scratch.uri("disk/disk.img/2"),
        ));
        server.stop();
        assert!(scratch.read("read") == content, "{label}: the partition is not what was written there");
        content[4096 + 512..][..512].fill(b'w');
        content[8192..][..1024].fill(0);
        let after = scratch.read("disk.img");
        assert!(after[MIB..][..8 * MIB] == content, "{label}: what was written is not what the image has");
        assert!(after[9 * MIB..10 * MIB].iter().all(|byte| *byte == 0));
    }
}

#[test]
fn a_guest_of_a_whole_4kn_image_gets_a_disk_with_4096_byte_blocks() {
    let scratch = Scratch::new();
    image(&scratch, "gpt");
    for (options, expected) in
        [(",logical_block_size=4096", 4096), ("", 512), (",logical_block_size=2048", 2048)]
    {
        let disk = format!("disk.img{options}");
        let args = ["serve", "--vhost-user", &scratch.at("socket"), "--disk", &disk, "--", "disk/disk.img"];
        let server = Server::start(&mut scratch.blockwork(args));
        let guest = Disk::new(Path::new(&scratch.at("socket")), Options::default()).unwrap();
        let config = guest.config().unwrap();
        assert_eq!((config.blk_size, config.capacity), (expected, 64 * MIB as u64 / 512), "{disk}");
        drop(guest);
        server.stop();
    }
}

#[test]
fn a_partition_table_in_larger_blocks_than_the_image_has_is_told_with_the_option() {
    let scratch = Scratch::new();
    image(&scratch, "gpt");
    let report = scan(&scratch, "disk.img");
    let warnings = report["disks"][0]["warnings"].to_string();
    assert!(
        warnings.contains("blocks of 4096 bytes") && warnings.contains(",logical_block_size=4096"),
        "{report}"
    );
    let server = scratch.serve(["--disk", "disk.img"]);
    let said = server.said();
    assert!(
        said.contains("disk.img: its partition table") && said.contains(",logical_block_size=4096"),
        "{said}"
    );
    drop(server);
    // One in blocks of 512 is an image like any other.
    let script = scratch.write("script", "label: gpt\nstart=2048, size=2048\n");
    let other = scratch.sparse("other.img", 8 * MIB as u64);
    run(tool("sh").args(["-c", &format!("sfdisk --quiet {other} < {script}")]));
    assert_eq!(scan(&scratch, "other.img")["disks"][0]["warnings"].to_string(), "[]");
}

#[test]
fn a_device_gets_larger_blocks_and_no_smaller_ones_and_only_whole_blocks_are_the_disk() {
    let scratch = Scratch::new();
    image(&scratch, "gpt");
    let fine = Loop::with(&["--direct-io=on"], &scratch.at("disk.img"));
    let disk = format!("{},logical_block_size=4096", fine.device);
    let limits = run(&mut scratch.blockwork(["scan", "--limits", &disk]));
    let row = limits.lines().rfind(|line| line.starts_with("disk/loop")).unwrap();
    let row: Vec<_> = row.split_whitespace().collect();
    assert_eq!(row[1..4], ["4096"; 3], "{limits}");
    drop(fine);
    let coarse = Loop::with(&["--direct-io=on", "--sector-size=4096"], &scratch.at("disk.img"));
    let said = scratch.refused(["--disk", &format!("{},logical_block_size=2048", coarse.device)]);
    for word in [&*coarse.device, "logical_block_size=2048", "4096 bytes", "leave the option out"] {
        assert!(said.contains(word), "{said}");
    }
    drop(coarse);
    scratch.sparse("uneven.img", MIB as u64 + 512);
    let server = scratch.serve(["--disk", "uneven.img,logical_block_size=4096"]);
    let said = server.said();
    assert!(
        said.contains("1049088 bytes is not a multiple of 4096: the last 512 bytes are not part"),
        "{said}"
    );
    python(&format!(
        "h = connect({:?})\nassert h.get_size() == 1 << 20\nh.pread(512, (1 << 20) - 512)\n",
        scratch.uri("")
    ));
    server.stop();
    let said = scratch.misused(["--disk", "memory:4608,logical_block_size=4096"]);
    assert!(said.contains("4608 bytes are not whole blocks") && said.contains("8192 would be"), "{said}");
}

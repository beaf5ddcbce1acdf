//! Disks that a loop device is over: it takes no lock, and a second writer would destroy what is on it.

use std::fs;
use std::path::PathBuf;

use crate::support::fs::{Loop, Mounted, sysfs};
use crate::support::{Scratch, run, run_refused, tool};

const MIB: u64 = 1 << 20;

/// A file with an ext4 on it.
fn formatted() -> Scratch {
    let scratch = Scratch::new();
    run(tool("mkfs.ext4").args(["-q", "-F", &scratch.sparse("disk.img", 16 * MIB)]));
    scratch
}

#[test]
fn a_file_that_is_mounted_by_a_loop_device_is_not_written() {
    let scratch = formatted();
    fs::hard_link(scratch.path("disk.img"), scratch.path("other name")).unwrap();
    std::os::unix::fs::symlink("disk.img", scratch.path("link")).unwrap();
    let device = Loop::over(&scratch.at("disk.img"));
    let place = scratch.at("mounted here");
    let mounted = Mounted::new(&device.device, &PathBuf::from(&place));
    let remedy = format!("release it first (umount {place} and losetup -d {})", device.device);
    for args in [
        &["--disk", "disk.img"][..],
        &["--disk", "other name"],
        &["--disk", "link"],
        &["--disk", "disk.img", "--sandbox", "on"],
    ] {
        let said = scratch.refused(args);
        let holder = format!("{} (mounted at {place}) is a loop device over it", device.device);
        assert!(said.contains(&holder) && said.contains(&remedy), "{args:?}: {said}");
    }
    // Who makes something of it as well.
    let said = run_refused(&mut scratch.blockwork(["vg", "create", "--force", "vg0", "disk.img"]));
    assert!(said.contains(&remedy), "{said}");
    // Who only reads is told; who knows better is believed.
    let server = scratch.serve(["--read-only", "--disk", "disk.img"]);
    let said = server.said();
    assert!(said.contains("warning: disk.img: ") && said.contains(&remedy), "{said}");
    server.stop();
    scratch.serve(["--disk", "disk.img,lock=off"]).stop_quietly();
    mounted.unmount();
    let said = scratch.refused(["--disk", "disk.img"]);
    assert!(said.contains(&format!("(losetup -d {})", device.device)), "{said}");
    drop(device);
    scratch.serve(["--disk", "disk.img"]).stop_quietly();
}

/// What was put in the place of a file that a loop device has is another file.
#[test]
fn a_file_with_the_name_of_one_that_a_loop_device_has_is_nobodys() {
    let scratch = formatted();
    let device = Loop::over(&scratch.at("disk.img"));
    fs::remove_file(scratch.path("disk.img")).unwrap();
    assert!(device.sysfs("loop/backing_file").ends_with("disk.img (deleted)"));
    scratch.sparse("disk.img", MIB);
    scratch.serve(["--disk", "disk.img"]).stop_quietly();
}

#[test]
fn what_a_loop_device_only_reads_may_be_read_beside_it_and_not_be_written() {
    let scratch = formatted();
    let device = Loop::with(&["--read-only"], &scratch.at("disk.img"));
    scratch.serve(["--read-only", "--disk", "disk.img"]).stop_quietly();
    let said = scratch.refused(["--disk", "disk.img"]);
    assert!(said.contains(&format!("{} is a loop device over it", device.device)), "{said}");
}

/// As udev does for a moment.
#[test]
fn a_loop_device_that_goes_when_it_is_closed_is_waited_for() {
    let scratch = formatted();
    let device = Loop::over(&scratch.at("disk.img"));
    let mut reader = tool("sleep").arg("1").stdin(fs::File::open(&device.device).unwrap()).spawn().unwrap();
    assert_eq!(sysfs(&device.leave(), "loop/autoclear"), "1");
    scratch.serve(["--disk", "disk.img"]).stop_quietly();
    assert!(reader.wait().unwrap().success());
}

/// Nor does one over a device claim that.
#[test]
fn a_device_that_a_loop_device_is_over_is_not_written() {
    let scratch = Scratch::new();
    let disk = Loop::over(&scratch.sparse("disk.img", 16 * MIB));
    let upper = Loop::over(&disk.device);
    let said = scratch.refused(["--disk", &disk.device]);
    assert!(said.contains(&format!("{} is a loop device over it", upper.device)), "{said}");
    drop(upper);
    scratch.serve(["--disk", &disk.device]).stop_quietly();
}

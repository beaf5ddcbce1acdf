//! The guest itself: scenarios that share a boot, what is told of failures, and a power cut.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use blockwork_kernel::{Guest, GuestError, create_disk, pattern};
use tempfile::TempDir;

const MIB: u64 = 1 << 20;
const SEED: u64 = 0x626c_6f63_6b77_6f72;

/// Disks in a folder that goes with the test.
struct Disks {
    folder: TempDir,
    paths: Vec<PathBuf>,
}

impl Disks {
    fn new(count: usize, bytes: u64) -> Disks {
        let folder = tempfile::tempdir().unwrap();
        let paths =
            (0..count).map(|number| create_disk(folder.path().join(format!("{number}.img")), bytes).unwrap());
        Disks { paths: paths.collect(), folder }
    }
}

#[test]
fn arrays_and_volumes_are_made_in_one_scenario_and_found_in_the_next_of_the_same_boot() {
    let disks = Disks::new(4, 48 * MIB);
    let guest = Guest::shared();
    let scenario = || {
        let names = ["a", "b", "c", "d"].into_iter().zip(&disks.paths);
        let scenario = guest.scenario().variable("SEED", SEED.to_string());
        names.fold(scenario, |scenario, (name, path)| scenario.disk(name, path))
    };
    let made = scenario()
        .script(
            "md_create /dev/md0 ten --level=10 --layout=n2 --raid-devices=4 --chunk=64 --bitmap=internal --assume-clean /d/?
             whole write /dev/md0 $SEED
             mdadm --examine /d/a >/out/examine
             cat /proc/sys/kernel/random/boot_id",
        )
        .run()
        .unwrap();
    // The first chunk of the array is the first of its first member; the file has it as soon as the scenario has ended.
    let examine = String::from_utf8(made.files["examine"].clone()).unwrap();
    let start: u64 = value_of(&examine, "Data Offset : ").parse().unwrap();
    let mut chunk = vec![0; 64 << 10];
    File::open(&disks.paths[0]).unwrap().read_exact_at(&mut chunk, start * 512).unwrap();
    assert_eq!(pattern::mismatch(&chunk, 0, SEED), None);

    let found = scenario()
        .script(
            "md_assemble_all
             array=$(ls /dev/md1*)
             whole verify $array $SEED
             cat /proc/sys/kernel/random/boot_id
             pvcreate -q -y $array >&2
             vgcreate -q vg $array >&2
             lvcreate -q -y -l 10 -n linear vg >&2
             whole write /dev/vg/linear $SEED
             forget
             whole verify /dev/vg/linear $SEED
             sha256 /dev/vg/linear
             lvs --noheadings --nosuffix --units b -o lv_size vg/linear",
        )
        .run()
        .unwrap();
    let lines: Vec<&str> = found.stdout.lines().map(str::trim).collect();
    assert_eq!(lines[0], made.stdout.trim(), "one boot for both");
    assert_eq!(lines[1].len(), 64, "a hash");
    assert_eq!(lines[2], (40 * MIB).to_string());
    assert_eq!(fs::read_dir(disks.folder.path()).unwrap().count(), 4, "nothing was left beside the disks");
}

#[test]
fn guests_that_are_held_at_once_run_their_scripts_at_once() {
    let disks = Disks::new(1, MIB);
    let disk = File::options().read(true).write(true).open(&disks.paths[0]).unwrap();
    let (first, second) = (Guest::shared(), Guest::shared());
    first.boot().unwrap();
    thread::scope(|scope| {
        let script = "printf here | dd of=/d/a conv=fsync status=none
                      told() { [ \"$(dd if=/d/a bs=512 count=1 iflag=direct status=none | head -c 4)\" = told ]; }
                      until told; do busybox usleep 20000; done";
        let scenario = first.scenario().disk("a", &disks.paths[0]).script(script);
        let waits = scope.spawn(|| scenario.run());
        let mut said = [0; 4];
        while said != *b"here" && !waits.is_finished() {
            disk.read_exact_at(&mut said, 0).unwrap();
            thread::yield_now();
        }
        second.scenario().script("true").run().unwrap();
        disk.write_all_at(b"told", 0).unwrap();
        waits.join().unwrap().unwrap();
    });
}

fn value_of<'a>(text: &'a str, name: &str) -> &'a str {
    let (_, rest) = text.split_once(name).unwrap_or_else(|| panic!("no `{name}` in\n{text}"));
    rest.split_whitespace().next().unwrap()
}

#[test]
fn a_script_that_fails_is_told_with_its_line_and_the_guest_goes_on() {
    let disks = Disks::new(1, 16 * MIB);
    let guest = Guest::shared();
    // It leaves a file system mounted.
    let script = "mkfs.ext4 -q /d/a\nmount /d/a /mnt\necho said\necho data >/mnt/file\nfalse";
    let error = guest.scenario().disk("a", &disks.paths[0]).script(script).run().unwrap_err();
    let GuestError::Failed { output } = &error else { panic!("{error}") };
    assert_eq!((output.exit, output.stdout.as_str()), (1, "said\n"));
    assert!(error.to_string().contains("line 5: exit status 1: false"), "{error}");
    let again = "mount /d/a /mnt; cat /mnt/file /in/more";
    let again = guest.scenario().disk("a", &disks.paths[0]).input("more", "more\n").script(again).run();
    assert_eq!(
        again.unwrap().stdout,
        "data\nmore\n",
        "what was written is in the disk, in the next scenario too"
    );
}

#[test]
fn a_script_that_does_not_end_is_killed_and_the_guest_goes_on() {
    let guest = Guest::shared();
    guest.boot().unwrap();
    let error =
        guest.scenario().script("echo so far; sleep 1000").timeout(Duration::from_secs(2)).run().unwrap_err();
    let GuestError::TimedOut { output, .. } = &error else { panic!("{error}") };
    assert_eq!(output.stdout, "so far\n");
    assert!(error.to_string().starts_with("the script was killed: it did not end within 2 s"), "{error}");
    assert_eq!(guest.scenario().script("echo there").run().unwrap().stdout, "there\n");
}

#[test]
fn a_guest_that_panics_or_hangs_is_told_with_its_console_and_boots_again() {
    let guest = Guest::new();
    let error = guest.scenario().script("echo last; echo c >/proc/sysrq-trigger").run().unwrap_err();
    assert!(matches!(error, GuestError::Gone { .. }), "{error}");
    assert!(error.to_string().contains("Kernel panic - not syncing: sysrq triggered crash"), "{error}");

    // The parent of the script is what answers the host.
    let stuck = guest.scenario().script("kill -STOP $PPID; sleep 1000").timeout(Duration::from_secs(1));
    let error = stuck.run().unwrap_err();
    assert!(matches!(error, GuestError::Hung { .. }), "{error}");
    assert_eq!(guest.scenario().script("echo there").run().unwrap().stdout, "there\n");
}

#[test]
fn a_power_cut_loses_what_is_in_memory_and_keeps_what_was_flushed() {
    let disks = Disks::new(1, 16 * MIB);
    let guest = Guest::new();
    let cut = guest
        .scenario()
        .disk("a", &disks.paths[0])
        .script(
            "exec 5</d/a # closing the device for the last time would write what is in memory
             pattern write /d/a 0 65536 1
             dd if=/dev/urandom of=/d/a bs=64k seek=1 count=1 conv=notrunc status=none
             echo written
             power_cut",
        )
        .run_until_power_cut()
        .unwrap();
    assert_eq!(cut.stdout, "written\n");
    let mut data = vec![0; 128 << 10];
    File::open(&disks.paths[0]).unwrap().read_exact_at(&mut data, 0).unwrap();
    assert_eq!(pattern::mismatch(&data[..64 << 10], 0, 1), None, "what was flushed");
    assert!(data[64 << 10..].iter().all(|byte| *byte == 0), "what was only in the guest's memory");

    let error = guest.scenario().script("true").run_until_power_cut().unwrap_err();
    assert!(matches!(error, GuestError::NoCut { .. }), "{error}");
}

#[test]
fn a_disk_that_is_not_there_is_named() {
    let error = Guest::shared()
        .scenario()
        .disk("a", PathBuf::from("/nowhere/a.img"))
        .script("true")
        .run()
        .unwrap_err();
    assert!(matches!(&error, GuestError::Refused { .. }), "{error}");
    assert!(error.to_string().contains("/nowhere/a.img"), "{error}");
}

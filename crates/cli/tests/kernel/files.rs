//! File systems on arrays and volumes of the real kernel: made and filled on one side, checked, read and changed on the other. Our
//! side is a loop device over a FUSE file, with the host's file-system tools.

use std::fs;

use crate::machine::{Facts, MIB, Machine, expect_pattern, sha256_of};
use crate::support::fs::{LeftMount, Loop, Mounted, checksums, make_tree};
use crate::support::{Server, run, tool};

const MAKE: &str = "
md_create /dev/md0 files --level=10 --layout=n2 --chunk=512 --bitmap=internal --raid-devices=4 --assume-clean /d/a /d/b /d/c /d/d
md_stop /dev/md0
vgcreate vg /d/e /d/f /d/g >&2
lvcreate -y --type raid1 -m 1 --nosync -L 100m -n files vg >&2
lvcreate -y -L 40m -n striped -i 2 vg >&2
";

/// Checks `$1` with the program `$2`, reads all files of it, and adds one.
const CHECK: &str = "
check_files() {
    local name=$1 device=$2
    shift 2
    \"$@\" $device >&2
    mount $device /mnt
    fact $name files \"$(cd /mnt && find . -type f -print0 | sort -z | xargs -0 sha256sum | sha256sum | cut -d ' ' -f 1)\"
    : >/mnt/from-the-kernel
    pattern write /mnt/from-the-kernel 0 3145728 1
    umount /mnt
}
md_assemble /dev/md0 /d/a /d/b /d/c /d/d
check_files md/files /dev/md0 xfs_repair -n
fact md/files differs $(md_scrub /dev/md0)
md_stop /dev/md0
vgck vg
lvm_up vg
check_files vg/files /dev/vg/files e2fsck -f -n
check_files vg/striped /dev/vg/striped e2fsck -f -n
idle() { [ $(lvs --noheadings -o raid_sync_action vg/files) = idle ]; }
lvchange --syncaction check vg/files >&2
wait_for idle
fact vg/files differs $(lvs --noheadings -o raid_mismatch_count vg/files)
lvm_down() { vgchange -an vg >&2; }
lvm_down
";

const FILE_SYSTEMS: &[(&str, &[&str], &[&str])] = &[
    ("md/files", &["mkfs.xfs", "-q"], &["xfs_repair", "-n"]),
    ("vg/files", &["mkfs.ext4", "-q"], &["e2fsck", "-f", "-n"]),
    ("vg/striped", &["mkfs.ext4", "-q"], &["e2fsck", "-f", "-n"]),
];

/// Gives a volume, as a loop device, to `work`.
fn with_device(machine: &Machine, volume: &str, work: impl FnOnce(&Loop)) {
    let place = machine.scratch.path("file");
    let mut serve = machine.scratch.blockwork(["serve", "--disk"]);
    serve.args(machine.disks()).arg(volume).arg("--fuse").arg(&place);
    let server = Server::start(&mut serve);
    let _left = LeftMount(place.clone());
    {
        let device = Loop::over(place.to_str().expect("our names are text"));
        work(&device);
    }
    let ended = server.stop();
    assert!(ended.status.success(), "{volume}: {}", ended.stderr);
    machine.note("serve said", &ended.stderr);
}

fn program(line: &[&str], device: &Loop) {
    run(tool(line[0]).args(&line[1..]).arg(&device.device));
}

#[test]
fn file_systems_go_to_the_kernel_and_back() {
    let mut machine = Machine::new();
    for disk in ["a", "b", "c", "d", "e", "f", "g"] {
        machine.disk(disk, 192 * MIB);
    }
    machine.run(MAKE);
    let place = machine.scratch.path("mnt");
    let mut trees = Vec::new();
    for (volume, make, _) in FILE_SYSTEMS {
        with_device(&machine, volume, |device| {
            program(make, device);
            let mounted = Mounted::new(&device.device, &place);
            make_tree(&mounted.place);
            fs::remove_dir_all(mounted.place.join("folder1")).expect("it was made");
            run(tool("fstrim").arg(&mounted.place));
            trees.push(checksums(&mounted.place));
            mounted.unmount();
        });
    }

    let checked = machine.run(CHECK);
    let facts = Facts(&checked.stdout);
    for ((volume, _, check), tree) in FILE_SYSTEMS.iter().zip(&trees) {
        let list = machine.scratch.write("list", tree);
        let expected = sha256_of(&list);
        assert_eq!(facts.get(volume, "files"), expected, "{volume}: the files as the kernel reads them");
        if *volume != "vg/striped" {
            assert_eq!(facts.get(volume, "differs"), "0", "{volume}: sectors that differ between copies");
        }
        with_device(&machine, volume, |device| {
            program(check, device);
            let mounted = Mounted::new(&device.device, &place);
            let added = mounted.place.join("from-the-kernel");
            assert_eq!(expect_pattern(volume, &added, 1), 3 * MIB);
            fs::remove_file(added).expect("it is there");
            assert_eq!(checksums(&mounted.place), *tree, "{volume}: the files as we read them");
            mounted.unmount();
        });
    }
}

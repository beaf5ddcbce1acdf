//! Arrays that the real kernel made, written by us, and judged by the kernel: superblocks, bitmaps, that nothing is resynced, that
//! all copies are the same, and what they hold.

use std::fmt::Write;

use crate::machine::{Facts, KIB, MIB, Machine, scribble};
use crate::support::nbd::fio;
use crate::support::run;

/// An array; its members follow in the command line of `mdadm --create`.
struct Shape {
    name: &'static str,
    members: usize,
    create: &'static str,
}

const fn shape(name: &'static str, members: usize, create: &'static str) -> Shape {
    Shape { name, members, create }
}

impl Shape {
    fn disk(&self, nth: usize) -> String {
        format!("{}.{nth}", self.name)
    }

    fn disks(&self) -> Vec<String> {
        (0..self.members).map(|nth| self.disk(nth)).collect()
    }

    fn devices(&self) -> String {
        self.disks().iter().map(|disk| format!("/d/{disk} ")).collect()
    }

    fn has_copies(&self) -> bool {
        !["--level=0", "--level=linear"].iter().any(|level| self.create.contains(level))
    }

    fn has_bitmap(&self) -> bool {
        self.create.contains("bitmap")
    }
}

const SHAPES: &[Shape] = &[
    shape("linear", 3, "--level=linear"),
    shape("r0-zones", 3, "--level=0 --chunk=16 --layout=alternate"),
    shape("r1-2", 2, "--level=1"),
    shape("r1-3-bitmap", 3, "--level=1 --bitmap=internal --bitmap-chunk=64K --metadata=1.0"),
    shape("r10-n2-4-bitmap", 4, "--level=10 --layout=n2 --chunk=64 --bitmap=internal --bitmap-chunk=128K"),
    shape("r10-n2-3", 3, "--level=10 --layout=n2 --chunk=4 --metadata=1.1"),
    shape("r10-f2-3-bitmap", 3, "--level=10 --layout=f2 --chunk=64 --bitmap=internal --bitmap-chunk=64K"),
    shape("r10-o2-4", 4, "--level=10 --layout=o2 --chunk=32"),
    shape("r10-n3-4-bitmap", 4, "--level=10 --layout=n3 --chunk=64 --bitmap=internal"),
    shape("r4", 3, "--level=4 --chunk=16"),
    shape("r5-la", 3, "--level=5 --chunk=64 --layout=la"),
    shape("r5-ls-bitmap", 4, "--level=5 --chunk=32 --bitmap=internal --bitmap-chunk=64K"),
    shape("r5-first", 5, "--level=5 --chunk=4 --layout=parity-first --metadata=1.0"),
    shape("r6-ls-bitmap", 5, "--level=6 --chunk=64 --bitmap=internal --bitmap-chunk=128K"),
    shape("r6-ra-4", 4, "--level=6 --chunk=16 --layout=ra"),
    shape("r6-continue", 5, "--level=6 --chunk=16 --layout=ddf-N-continue"),
    shape("r6-ls-6", 5, "--level=6 --chunk=32 --layout=left-symmetric-6"),
    shape("r1-spare", 3, "--level=1 --raid-devices=2 --spare-devices=1 --bitmap=internal"),
];

/// Makes the arrays, and fills them.
fn make() -> String {
    let mut script = String::new();
    for (number, shape) in SHAPES.iter().enumerate() {
        let Shape { name, members, create, .. } = shape;
        let count = if create.contains("--raid-devices") {
            String::new()
        } else {
            format!("--raid-devices={members}")
        };
        writeln!(
            script,
            "md_create /dev/md{number} {name} {count} {create} {}
             whole write /dev/md{number} {number}
             md_stop /dev/md{number}",
            shape.devices()
        )
        .expect("text");
    }
    script
}

/// What the kernel and mdadm say of the arrays: `md_judge NUMBER NAME BITMAP MEMBERS...`
const JUDGE: &str = "
md_judge() {
    local number=$1 name=$2 bitmap=$3 array=/dev/md$1 disk
    shift 3
    for disk; do
        fact $name state.$disk \"$(examine $disk State)\"
        fact $name events.$disk \"$(examine $disk Events)\"
        fact $name checksum.$disk \"$(examine $disk Checksum)\"
        [ $bitmap = no ] || fact $name dirty.$disk \"$(mdadm --examine-bitmap $(device $disk) | sed -n 's/^ *Bitmap : .*, \\([0-9]*\\) dirty.*/\\1/p')\"
    done
    dmesg -C
    md_assemble $array \"$@\"
    if [ -e $(md_sysfs $array)/sync_action ]; then
        fact $name action \"$(md_reads $array sync_action)\"
        fact $name degraded \"$(md_reads $array degraded)\"
        fact $name resync \"$(md_reads $array resync_start)\"
    fi
    fact $name kernel \"$(dmesg | grep -c 'resync of RAID\\|recovery of RAID\\|not clean' || true)\"
    fact $name sha256 $(sha256 $array)
    [ ! -e $(md_sysfs $array)/sync_action ] || fact $name differs $(md_scrub $array)
    md_stop $array
}
";

fn judge(shapes: &[Shape]) -> String {
    let mut script = JUDGE.to_owned();
    for (number, shape) in shapes.iter().enumerate() {
        let bitmap = if shape.has_bitmap() { "yes" } else { "no" };
        writeln!(script, "md_judge {number} {} {bitmap} {}", shape.name, shape.devices()).expect("text");
    }
    script
}

#[test]
fn what_we_write_to_an_array_is_what_the_kernel_reads_from_every_copy_without_a_resync() {
    let mut machine = Machine::new();
    for shape in SHAPES {
        for (nth, disk) in shape.disks().iter().enumerate() {
            machine.disk(disk, 8 * MIB + nth as u64 * 300 * KIB);
        }
    }
    machine.run(&make());
    let mut given = machine.disks();
    given.reverse();
    let served = machine.serve(&given, &[]);
    for (seed, shape) in (1..).zip(SHAPES) {
        let volume = format!("md/{}", shape.name);
        scribble(&machine, &volume, seed);
        let job = [
            "--rw=randwrite",
            "--bsrange=512-256k",
            "--iodepth=16",
            "--size=4M",
            "--verify=crc32c",
            "--fsync=64",
        ];
        run(&mut fio(&machine.scratch, &machine.scratch.uri(&volume), &job));
    }
    let written: Vec<String> =
        SHAPES.iter().map(|shape| machine.sha256(&format!("md/{}", shape.name))).collect();
    served.stop();

    let judged = machine.run(&judge(SHAPES));
    let facts = Facts(&judged.stdout);
    for (shape, sha256) in SHAPES.iter().zip(&written) {
        let name = shape.name;
        let is = |key: &str| facts.get(name, key);
        for disk in shape.disks() {
            assert!(is(&format!("checksum./d/{disk}")).ends_with("- correct"), "{name}");
            assert_eq!(is(&format!("state./d/{disk}")), "clean", "{name}");
            assert_eq!(
                is(&format!("events./d/{disk}")),
                is(&format!("events./d/{name}.0")),
                "{name}: {disk}"
            );
            if shape.has_bitmap() && !(name == "r1-spare" && disk.ends_with(".2")) {
                assert_eq!(is(&format!("dirty./d/{disk}")), "0", "{name}: {disk}");
            }
        }
        assert_eq!(is("kernel"), "0", "{name}: a resync was begun");
        assert_eq!(is("sha256"), sha256, "{name}");
        if shape.has_copies() {
            assert_eq!((is("action"), is("degraded"), is("resync")), ("idle", "0", "none"), "{name}");
            assert_eq!(is("differs"), "0", "{name}: sectors that differ between copies");
        }
    }
}

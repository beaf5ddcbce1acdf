//! Images on storage whose O_DIRECT takes nothing smaller than 4096 bytes: a partition table of 512-byte sectors is read as such, and a
//! volume whose blocks would lie across those is refused with the reason.

mod lab;

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use blockwork_volume::{Assembly, Plan};
use lab::{refused, volume};

const MIB: u64 = 1 << 20;

/// An ext4 on a loop device of 4096-byte sectors. Needs root.
struct Coarse {
    at: tempfile::TempDir,
    device: String,
    _backing: tempfile::NamedTempFile,
}

/// Until a program that is started has begun, it holds the locks of all images that are open here.
static STARTING: Mutex<()> = Mutex::new(());

fn run(program: &str, arguments: &[&str]) -> String {
    let child = {
        let _starting = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
        let piped = Stdio::piped;
        Command::new(program).args(arguments).stdout(piped()).stderr(piped()).spawn().unwrap()
    };
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

impl Coarse {
    fn new() -> Coarse {
        let backing = tempfile::NamedTempFile::new().unwrap();
        backing.as_file().set_len(64 * MIB).unwrap();
        let file = backing.path().to_str().unwrap();
        let device = run("losetup", &["--show", "--find", "--sector-size=4096", file]);
        run("mkfs.ext4", &["-q", &device]);
        let at = tempfile::tempdir().unwrap();
        run("mount", &[&device, at.path().to_str().unwrap()]);
        Coarse { at, device, _backing: backing }
    }

    /// An image with DOS partitions of sectors 63 to 1063 and 2048 to 4096.
    fn image(&self) -> PathBuf {
        let path = self.at.path().join("old.img");
        let file = File::create(&path).unwrap();
        file.set_len(4 * MIB).unwrap();
        let mut mbr = [0; 512];
        mbr[440..444].copy_from_slice(&[1, 2, 3, 4]);
        for (nth, (start, sectors)) in [(63u32, 1000u32), (2048, 2048)].into_iter().enumerate() {
            let entry = &mut mbr[446 + 16 * nth..][..16];
            entry[4] = 0x83;
            entry[8..12].copy_from_slice(&start.to_le_bytes());
            entry[12..].copy_from_slice(&sectors.to_le_bytes());
        }
        mbr[510..].copy_from_slice(&[0x55, 0xaa]);
        file.write_all_at(&mbr, 0).unwrap();
        path
    }
}

impl Drop for Coarse {
    fn drop(&mut self) {
        // The other test may be starting a program just now, which has our files open until it runs: both end when the last of them is closed.
        run("umount", &["--lazy", self.at.path().to_str().unwrap()]);
        run("losetup", &["--detach", &self.device]);
    }
}

fn open(disk: &str, tables: &[&str]) -> Assembly {
    let tables = tables.iter().map(|path| (*path).to_owned()).collect();
    let _nobody_starts = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
    Assembly::open(Plan { disks: vec![disk.to_owned()], tables, ..Plan::default() }).unwrap()
}

#[test]
fn partitions_of_an_image_are_where_its_table_says_and_served_where_whole_blocks_are_whole() {
    let coarse = Coarse::new();
    let path = coarse.image();
    let name = path.to_str().unwrap();
    let mut assembly = open(name, &[]);
    let second = volume(&mut assembly, "disk/old.img/2");
    assert_eq!((second.sectors().0, second.limits().logical_block_size), (2048, 4096));
    let why = refused(&mut assembly, "disk/old.img/1");
    for word in ["sector 63", "4096 bytes", "direct=off", name] {
        assert!(why.contains(word), "{word}: {why}");
    }
    drop((assembly, second));
    let mut through_the_cache = open(&format!("{name},direct=off"), &[]);
    assert_eq!(volume(&mut through_the_cache, "disk/old.img/1").sectors().0, 1000);
}

#[test]
fn a_target_that_begins_in_the_middle_of_a_block_is_refused() {
    let coarse = Coarse::new();
    let path = coarse.image();
    let name = path.to_str().unwrap();
    let table = coarse.at.path().join("table");
    for (targets, fits) in [
        (format!("0 1024 linear {name} 34"), false),
        (format!("0 1024 striped 2 8 {name} 8 {name} 1025"), false),
        (format!("0 1024 delay {name} 34 0"), false),
        (format!("0 1024 linear {name} 64\n1024 1024 linear {name} 2044"), false),
        (format!("0 1024 linear {name} 64\n1024 1024 linear {name} 2048"), true),
    ] {
        fs::write(&table, &targets).unwrap();
        let mut assembly = open(name, &[table.to_str().unwrap()]);
        let (chosen, why) = assembly.choose_all();
        assert_eq!((chosen.len(), why.len()), if fits { (1, 0) } else { (0, 1) }, "{targets}: {why:?}");
        assert!(fits || why[0].to_string().contains("direct=off"), "{targets}: {why:?}");
    }
}

//! Partition tables against the tools that own them: what sfdisk and sgdisk write, we read as `sfdisk -J` does; what
//! we write, `sgdisk -v` and `sfdisk --verify` accept.

mod tool;

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use blockwork_format::partition::gpt::{self, GptPartition};
use blockwork_format::partition::mbr::{self, ExtendedPartition, MbrPartition};
use blockwork_format::partition::{Guid, Kind, Partition, PartitionTable, read};
use blockwork_format::{Piece, Source};
use serde_json::Value;

const MIB: u64 = 1 << 20;
const SECTORS_PER_MIB: u64 = MIB / 512;

/// A sparse file that is a disk. Removed with its folder.
struct Disk {
    _folder: tempfile::TempDir,
    path: PathBuf,
}

impl Disk {
    fn new(bytes: u64) -> Disk {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk.img");
        File::create(&path).unwrap().set_len(bytes).unwrap();
        Disk { _folder: folder, path }
    }

    fn with(bytes: u64, pieces: &[Piece]) -> Disk {
        let disk = Disk::new(bytes);
        for piece in pieces {
            disk.write(piece.offset, &piece.bytes);
        }
        disk
    }

    fn write(&self, offset: u64, bytes: &[u8]) {
        let mut file = File::options().write(true).open(&self.path).unwrap();
        file.seek(SeekFrom::Start(offset)).unwrap();
        file.write_all(bytes).unwrap();
    }

    fn sfdisk(&self, script: &str) {
        let mut command = Command::new("sfdisk");
        command.arg("--quiet").arg(&self.path).stdin(script_file(&self.path, script));
        ok(&mut command, "fdisk");
    }

    fn sgdisk(&self, arguments: &[&str]) -> String {
        ok(Command::new("sgdisk").args(arguments).arg(&self.path), "gdisk")
    }

    fn sfdisk_json(&self) -> Value {
        let text = ok(Command::new("sfdisk").arg("-J").arg(&self.path), "fdisk");
        serde_json::from_str::<Value>(&text).unwrap()["partitiontable"].clone()
    }

    fn verify(&self) -> String {
        ok(Command::new("sfdisk").arg("--verify").arg(&self.path), "fdisk")
    }

    fn table(&self) -> PartitionTable {
        read(&FileSource::open(&self.path), 0).unwrap().expect("a partition table")
    }
}

fn script_file(beside: &Path, script: &str) -> Stdio {
    let path = beside.with_extension("script");
    fs::write(&path, script).unwrap();
    File::open(path).unwrap().into()
}

fn ok(command: &mut Command, package: &str) -> String {
    let output = tool::output(command, package);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {text}{stderr}");
    text + &stderr
}

struct FileSource {
    file: File,
    size: u64,
}

impl FileSource {
    fn open(path: &Path) -> Self {
        let file = File::open(path).unwrap();
        let size = file.metadata().unwrap().len();
        Self { file, size }
    }
}

impl Source for FileSource {
    fn size(&self) -> u64 {
        self.size
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> std::io::Result<()> {
        let mut file = &self.file;
        file.seek(SeekFrom::Start(offset))?;
        file.read_exact(buf)
    }
}

/// What both tell of a partition. sfdisk leaves out an empty name, and lists extended partitions.
#[derive(Debug, PartialEq, Eq)]
struct Told {
    number: u64,
    start: u64,
    sectors: u64,
    type_id: String,
    uuid: Option<String>,
    name: Option<String>,
    bootable: bool,
}

fn told_by_sfdisk(json: &Value, disk: &Path) -> Vec<Told> {
    let prefix = disk.to_str().unwrap();
    let told = json["partitions"].as_array().expect("partitions").iter().map(|p| {
        let text = |key: &str| p[key].as_str().map(str::to_owned);
        Told {
            number: text("node")
                .unwrap()
                .strip_prefix(prefix)
                .unwrap()
                .trim_start_matches('p')
                .parse()
                .unwrap(),
            start: p["start"].as_u64().unwrap(),
            sectors: p["size"].as_u64().unwrap(),
            type_id: text("type").unwrap(),
            uuid: text("uuid"),
            name: text("name"),
            bootable: p["bootable"].as_bool().unwrap_or(false),
        }
    });
    told.filter(|told| !matches!(told.type_id.as_str(), "5" | "f" | "85")).collect()
}

fn told_by_us(table: &PartitionTable) -> Vec<Told> {
    let told = |p: &Partition| Told {
        number: p.number.into(),
        start: p.start_sector,
        sectors: p.sectors,
        type_id: p.type_id.trim_start_matches("0x").to_owned(),
        uuid: p.uuid.clone().filter(|_| table.kind == Kind::Gpt),
        name: p.name.clone(),
        bootable: p.bootable && table.kind == Kind::Mbr,
    };
    table.partitions.iter().map(told).collect()
}

fn assert_same_as_sfdisk(disk: &Disk) -> PartitionTable {
    let (table, json) = (disk.table(), disk.sfdisk_json());
    assert_eq!(table.disk_id, json["id"].as_str().unwrap());
    assert_eq!(told_by_us(&table), told_by_sfdisk(&json, &disk.path));
    assert_eq!(table.warnings, Vec::<String>::new());
    table
}

#[test]
fn a_gpt_that_sfdisk_wrote_is_read_as_sfdisk_reads_it() {
    let disk = Disk::new(64 * MIB);
    disk.sfdisk(
        "label: gpt\nlabel-id: 0F0E0D0C-0B0A-4908-8706-050403020100\n\
         size=4MiB, type=uefi, name=\"EFI system\"\n\
         size=8MiB, type=lvm, name=\"größe 数 ✓\", uuid=11111111-2222-4333-8444-555555555555\n\
         size=8MiB, type=raid, attrs=\"LegacyBIOSBootable\"\n\
         type=linux\n",
    );
    let table = assert_same_as_sfdisk(&disk);
    assert_eq!((table.kind, table.logical_block_size, table.partitions.len()), (Kind::Gpt, 512, 4));
    let names: Vec<_> = table.partitions.iter().map(|p| p.type_name.unwrap()).collect();
    assert_eq!(names, ["EFI System", "Linux LVM", "Linux RAID", "Linux filesystem"]);
    assert!(table.partitions[2].bootable && table.partitions[2].attributes == 4);
}

#[test]
fn a_gpt_that_sgdisk_wrote_is_read_as_sfdisk_reads_it() {
    let disk = Disk::new(64 * MIB);
    disk.sgdisk(&["-n", "1:2048:+4M", "-t", "1:8e00", "-n", "7:0:+4M", "-c", "7:seventh", "-n", "3:0:0"]);
    let table = assert_same_as_sfdisk(&disk);
    assert_eq!(table.partitions.iter().map(|p| p.number).collect::<Vec<_>>(), [1, 3, 7]);
}

#[test]
fn a_gpt_with_another_number_of_entries_is_read_as_sfdisk_reads_it() {
    for entries in ["table-length: 4", "table-length: 256"] {
        let disk = Disk::new(64 * MIB);
        disk.sfdisk(&format!("label: gpt\n{entries}\nsize=4MiB\nsize=4MiB\n"));
        assert_same_as_sfdisk(&disk);
    }
}

#[test]
fn an_mbr_with_logical_partitions_is_read_as_sfdisk_reads_it() {
    let disk = Disk::new(128 * MIB);
    disk.sfdisk(
        "label: dos\nlabel-id: 0xcafe1234\nsize=4MiB, type=83, bootable\nsize=4MiB, type=8e\n\
         size=64MiB, type=5\nsize=4MiB, type=fd\nsize=8MiB, type=83\nsize=4MiB, type=83\nsize=4MiB, type=82\n",
    );
    let table = assert_same_as_sfdisk(&disk);
    let numbers: Vec<_> = table.partitions.iter().map(|p| p.number).collect();
    assert_eq!((table.kind, numbers), (Kind::Mbr, vec![1, 2, 4, 5, 6, 7]));
    assert_eq!(table.partitions[0].uuid.as_deref(), Some("cafe1234-01"));
    assert_eq!(table.partitions[4].uuid.as_deref(), Some("cafe1234-06"));
}

#[test]
fn logical_partitions_after_one_was_deleted_are_read_as_sfdisk_reads_them() {
    for number in ["5", "6", "7", "8"] {
        let disk = Disk::new(128 * MIB);
        let logical: String =
            [4, 12, 24, 32].iter().map(|mib| format!("start={mib}MiB, size=4MiB\n")).collect();
        disk.sfdisk(&format!("label: dos\nstart=1MiB, size=100MiB, type=f\n{logical}"));
        assert_eq!(assert_same_as_sfdisk(&disk).partitions.len(), 4);
        ok(Command::new("sfdisk").args(["--quiet", "--delete"]).arg(&disk.path).arg(number), "fdisk");
        assert_eq!(assert_same_as_sfdisk(&disk).partitions.len(), 3);
    }
}

#[test]
fn an_empty_table_is_a_table() {
    for label in ["gpt", "dos"] {
        let disk = Disk::new(16 * MIB);
        disk.sfdisk(&format!("label: {label}\n"));
        assert_eq!(disk.table().partitions, [], "{label}");
    }
}

fn gpt_layout(disk_bytes: u64, logical_block_size: u32) -> gpt::Layout {
    let partition = |mib: u64, type_guid, name: &str| GptPartition {
        start_sector: mib * SECTORS_PER_MIB,
        sectors: 4 * SECTORS_PER_MIB,
        type_guid,
        guid: Guid([u8::try_from(mib).unwrap(); 16]),
        name: name.into(),
        attributes: 0,
    };
    gpt::Layout {
        disk_bytes,
        logical_block_size,
        disk_guid: "0F0E0D0C-0B0A-4908-8706-050403020100".parse().unwrap(),
        partitions: vec![
            Some(partition(1, Guid::LINUX_LVM, "lvm")),
            None,
            Some(partition(9, Guid::LINUX, "größe 数 ✓ of thirty-six characters!")),
            Some(partition(5, Guid::EFI_SYSTEM, "")),
        ],
    }
}

#[test]
fn a_gpt_that_we_wrote_passes_sgdisk_and_sfdisk() {
    for bytes in [64 * MIB, 64 * MIB + 512, 3 << 40] {
        let disk = Disk::with(bytes, &gpt::build(&gpt_layout(bytes, 512)).unwrap());
        let verdict = disk.sgdisk(&["-v"]);
        assert!(verdict.contains("No problems found"), "{verdict}");
        assert!(disk.verify().contains("No errors detected"), "{}", disk.verify());
        assert_eq!(assert_same_as_sfdisk(&disk).partitions.len(), 3);
    }
}

#[test]
fn an_mbr_that_we_wrote_passes_sfdisk() {
    let partition = |mib: u64, type_id, bootable| MbrPartition {
        start_sector: mib * SECTORS_PER_MIB,
        sectors: 4 * SECTORS_PER_MIB,
        type_id,
        bootable,
    };
    let layout = mbr::Layout {
        disk_bytes: 64 * MIB,
        logical_block_size: 512,
        signature: 0xcafe_1234,
        primary: vec![partition(1, 0x83, true), partition(5, 0x8e, false)],
        extended: Some(ExtendedPartition {
            start_sector: 16 * SECTORS_PER_MIB,
            sectors: 40 * SECTORS_PER_MIB,
            logical: vec![partition(17, 0x83, false), partition(22, 0xfd, false), partition(40, 0x82, false)],
        }),
    };
    let disk = Disk::with(layout.disk_bytes, &mbr::build(&layout).unwrap());
    assert!(disk.verify().contains("No errors detected"), "{}", disk.verify());
    let table = assert_same_as_sfdisk(&disk);
    assert_eq!(table.partitions.iter().map(|p| p.number).collect::<Vec<_>>(), [1, 2, 5, 6, 7]);
    assert_eq!(table.partitions[4].type_name, Some("Linux swap"));
}

#[test]
fn a_gpt_whose_primary_is_overwritten_is_read_from_its_backup_as_sgdisk_does() {
    let bytes = 64 * MIB;
    let whole = Disk::with(bytes, &gpt::build(&gpt_layout(bytes, 512)).unwrap());
    let expected = whole.table().partitions;
    for (offset, what) in [(512, "signature"), (512 + 56, "header CRC"), (1024 + 40, "CRC")] {
        let disk = Disk::with(bytes, &gpt::build(&gpt_layout(bytes, 512)).unwrap());
        disk.write(offset, &[0xa5; 4]);
        let table = disk.table();
        assert_eq!(table.partitions, expected);
        let [warning] = &table.warnings[..] else { panic!("{:?}", table.warnings) };
        assert!(warning.contains(&format!("{what} is ")), "{warning}");
        assert!(warning.contains("the backup at 67108352 was used instead"), "{warning}");
        // sgdisk, told to write what it could read, agrees with us about what that is.
        disk.sgdisk(&["-e"]);
        assert_eq!(disk.table().partitions, expected);
        assert_eq!(disk.table().warnings, Vec::<String>::new());
    }
}

#[test]
fn a_disk_that_grew_is_read_with_a_warning_that_sgdisk_can_follow() {
    let disk = Disk::with(64 * MIB, &gpt::build(&gpt_layout(64 * MIB, 512)).unwrap());
    File::options().write(true).open(&disk.path).unwrap().set_len(80 * MIB).unwrap();
    let table = disk.table();
    assert_eq!(table.partitions.len(), 3);
    assert!(table.warnings[0].contains("the disk has grown, sgdisk -e moves it"), "{:?}", table.warnings);
    disk.sgdisk(&["-e"]);
    assert_eq!(disk.table().warnings, Vec::<String>::new());
}

#[test]
fn a_file_system_on_the_whole_disk_is_not_taken_for_a_table() {
    for (tool, arguments, package) in
        [("mkfs.ext4", &["-q", "-F"], "e2fsprogs"), ("mkfs.xfs", &["-q", "-f"], "xfsprogs")]
    {
        let disk = Disk::new(400 * MIB);
        ok(Command::new(tool).args(arguments).arg(&disk.path), package);
        assert_eq!(read(&FileSource::open(&disk.path), 0), Ok(None), "{tool}");
    }
}

//! LVM2 metadata against the tools that own the format: what LVM writes is read here with the numbers that `lvs` and `pvs`
//! report, and what is written here is taken by `vgck`, `pvck`, `lvs` and `pvs`.
//!
//! LVM runs on loop devices, without the kernel's device mapper (`--driverloaded n`): it writes and checks metadata, and
//! activates nothing. Each test has its own devices, its own `LVM_SYSTEM_DIR`, and a filter that shows LVM nothing else.

mod tool;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use blockwork_format::lvm2::vg::{Area, SegmentType};
use blockwork_format::lvm2::{
    AreaHeader, DiskArea, Extension, Label, PvHeader, RawLocation, Section, Style, Uuid, VolumeGroup,
};
use blockwork_format::{Piece, Source};
use serde_json::Value;

/// Disk files on loop devices, and an LVM that sees only them.
struct Lab {
    folder: tempfile::TempDir,
    images: Vec<Image>,
    devices: Vec<String>,
}

/// A disk file.
struct Image {
    path: PathBuf,
    file: File,
}

impl Source for Image {
    fn size(&self) -> u64 {
        self.file.metadata().unwrap().len()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(buf, offset)
    }
}

impl Image {
    fn write(&self, offset: u64, bytes: &[u8]) {
        self.file.write_all_at(bytes, offset).unwrap();
    }

    fn label(&self) -> Label {
        let found = Label::find(self).unwrap().expect("a label");
        assert_eq!(found.damaged, []);
        found.label
    }

    fn headers(&self) -> Vec<AreaHeader> {
        let areas = self.label().pv.metadata_areas;
        areas.into_iter().map(|area| AreaHeader::read(self, area).unwrap()).collect()
    }

    /// The committed text of the first area.
    fn text(&self) -> Vec<u8> {
        let header = &self.headers()[0];
        header.read_text(self, &header.committed().expect("a text")).unwrap()
    }

    /// Commits a text to every area, in the order that LVM keeps; returns where it lies in the first.
    fn commit(&self, text: &[u8]) -> RawLocation {
        let mut headers = self.headers();
        let places: Vec<_> = headers.iter().map(|header| header.place(text).unwrap()).collect();
        for (header, place) in headers.iter().zip(&places) {
            for Piece { offset, bytes } in header.pieces(place, text).unwrap() {
                self.write(offset, &bytes);
            }
        }
        for slots in [|old, new| [old, new], |_, new| [new, RawLocation::default()]] {
            for (header, place) in headers.iter_mut().zip(&places) {
                header.slots = slots(header.slots[0], *place);
                self.write(header.area.offset, &header.encode());
            }
        }
        places[0]
    }
}

impl Lab {
    fn new(disks: usize, mib: u64) -> Lab {
        let folder = tempfile::tempdir().unwrap();
        let mut lab = Lab { folder, images: Vec::new(), devices: Vec::new() };
        for n in 0..disks {
            let path = lab.folder.path().join(format!("disk{n}"));
            let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
            file.set_len(mib << 20).unwrap();
            lab.images.push(Image { path: path.clone(), file });
            let found = tool::output(Command::new("losetup").args(["--find", "--show"]).arg(&path), "mount");
            assert!(found.status.success(), "{found:?}");
            lab.devices.push(String::from_utf8(found.stdout).unwrap().trim().to_owned());
        }
        let ours: String = lab.devices.iter().map(|device| format!("\"a|^{device}$|\",")).collect();
        let locks = lab.folder.path().join("locks");
        let configuration = format!(
            "devices {{ obtain_device_list_from_udev = 0 use_devicesfile = 0 external_device_info_source = \"none\"\n\
             global_filter = [{ours} \"r|.*|\"] }}\n\
             global {{ use_lvmpolld = 0 use_lvmlockd = 0 event_activation = 0 locking_dir = \"{}\" }}\n\
             activation {{ udev_sync = 0 udev_rules = 0 monitoring = 0 }}\n\
             backup {{ backup = 0 archive = 0 }}\n",
            locks.display()
        );
        fs::write(lab.folder.path().join("lvm.conf"), configuration).unwrap();
        lab
    }

    /// What the command printed; it must succeed.
    fn lvm(&self, arguments: &[&str]) -> String {
        let found = self.run(arguments);
        let (out, err) = (String::from_utf8_lossy(&found.stdout), String::from_utf8_lossy(&found.stderr));
        assert!(found.status.success(), "lvm {arguments:?}: {out}{err}");
        out.into_owned()
    }

    /// Runs the command, however it ends.
    fn run(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new("lvm");
        command.args(arguments).args(["--driverloaded", "n"]);
        command.env("LVM_SYSTEM_DIR", self.folder.path()).env("LVM_SUPPRESS_FD_WARNINGS", "1");
        tool::output(&mut command, "lvm2")
    }

    /// Runs a check and asserts that it has nothing to complain of.
    fn check(&self, arguments: &[&str]) {
        let found = self.run(arguments);
        let err = String::from_utf8_lossy(&found.stderr);
        let complaints: Vec<&str> =
            err.lines().filter(|line| !line.contains("Activation disabled")).collect();
        assert!(found.status.success() && complaints.is_empty(), "lvm {arguments:?}: {err}");
    }

    /// Rows of a report, each a map from field to value.
    fn report(&self, kind: &str, fields: &str, more: &[&str]) -> Vec<BTreeMap<String, String>> {
        let command = format!("{kind}s");
        let options = ["--reportformat", "json", "--units", "s", "--nosuffix", "-o", fields];
        let out = self.lvm(&[&[command.as_str()], &options[..], more].concat());
        let parsed: Value = serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}"));
        let rows = parsed["report"][0][kind].as_array().unwrap_or_else(|| panic!("{out}"));
        let row = |row: &Value| {
            let cells = row.as_object().unwrap().iter();
            cells.map(|(key, value)| (key.clone(), value.as_str().unwrap().to_owned())).collect()
        };
        rows.iter().map(row).collect()
    }

    fn make_pv(&self, disk: usize, options: &[&str]) {
        self.lvm(&[&["pvcreate", "-q"], options, &[&self.devices[disk]]].concat());
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        for device in &self.devices {
            tool::output(Command::new("losetup").args(["--detach", device]), "mount");
        }
    }
}

/// Compares two texts, and shows the first line that differs.
#[track_caller]
fn assert_same_text(found: &[u8], expected: &str) {
    let found = String::from_utf8(found.to_vec()).unwrap();
    let lines = found.lines().zip(expected.lines()).enumerate();
    for (n, (found, expected)) in lines {
        assert_eq!(found, expected, "line {}", n + 1);
    }
    assert_eq!(found.len(), expected.len(), "one text is longer");
}

/// LVM's text as it would be without comments.
fn without_comments(text: &[u8]) -> String {
    let text = String::from_utf8(text.to_vec()).unwrap();
    let mut out = String::new();
    for line in text.trim_end_matches('\0').lines().filter(|line| !line.starts_with('#')) {
        let quotes_before = |at: usize| line[..at].matches('"').count() - line[..at].matches("\\\"").count();
        let comment = line.match_indices('#').find(|(at, _)| quotes_before(*at) % 2 == 0);
        out.push_str(comment.map_or(line, |(at, _)| line[..at].trim_end()));
        out.push('\n');
    }
    out
}

/// Compares a VG with what `lvs` and `pvs` say about it, in every number that both have.
fn assert_as_reported(lab: &Lab, vg: &VolumeGroup) {
    let pvs = lab.report("pv", "pv_uuid,pe_start,pv_pe_count,dev_size,pv_tags,vg_name,vg_uuid,vg_seqno", &[]);
    assert_eq!(pvs.len(), vg.pvs.len());
    for row in pvs {
        let pv = &vg.pvs[vg.pv(&Uuid::from_text(&row["pv_uuid"]).unwrap()).unwrap().0];
        let found = (pv.pe_start.to_string(), pv.pe_count.to_string(), pv.tags.join(","));
        assert_eq!(found, (row["pe_start"].clone(), row["pv_pe_count"].clone(), row["pv_tags"].clone()));
        assert_eq!(pv.dev_sectors.unwrap().to_string(), row["dev_size"]);
        let found = (&vg.name, vg.id.to_string(), vg.seqno.to_string());
        assert_eq!(found, (&row["vg_name"], row["vg_uuid"].clone(), row["vg_seqno"].clone()));
    }

    let segments = lab.report(
        "lv",
        "lv_name,lv_uuid,lv_tags,lv_size,seg_start_pe,segtype,seg_size_pe,stripes,stripe_size,region_size,chunk_size,origin,\
         pool_lv,seg_pe_ranges",
        &["-a"],
    );
    let visible = vg.visible();
    assert_eq!(
        vg.snapshots().count() + segments.len(),
        vg.lvs.iter().map(|lv| lv.segments.len()).sum::<usize>()
    );
    for row in segments {
        // LVM puts what is hidden into brackets.
        let name = row["lv_name"].trim_matches(['[', ']']);
        let index = vg.lv(name).unwrap();
        let lv = &vg.lvs[index.0];
        assert_eq!(visible[index.0], !row["lv_name"].starts_with('['), "{name}");
        assert_eq!(
            (lv.id.to_string(), lv.tags.join(",")),
            (row["lv_uuid"].clone(), row["lv_tags"].clone()),
            "{name}"
        );
        let snapshot = vg.snapshots().find(|snapshot| snapshot.store == index);
        assert_eq!(vg.lv_sectors(index).to_string(), row["lv_size"], "{name}");
        let at = |segment: &&blockwork_format::lvm2::vg::Segment| {
            segment.start_extent.to_string() == row["seg_start_pe"]
        };
        let segment = lv.segments.iter().find(at).unwrap();
        assert_eq!(segment.extent_count.to_string(), row["seg_size_pe"], "{name}");
        let kind = if matches!(segment.kind, SegmentType::Linear(_)) { "linear" } else { &segment.type_name };
        assert_eq!(kind, row["segtype"], "{name}");
        let lv_name = |lv: blockwork_format::lvm2::vg::LvIndex| vg.lvs[lv.0].name.as_str();
        let bare = |field: &str| row[field].trim_matches(['[', ']']).to_owned();
        if let Some(snapshot) = snapshot {
            assert_eq!(
                (lv_name(snapshot.origin), snapshot.chunk_size.to_string()),
                (&*bare("origin"), bare("chunk_size"))
            );
        }
        let (areas, count) = segment.areas();
        let ranges: Vec<String> = areas
            .iter()
            .map(|area| match *area {
                Area::Pv { pv, extent } => {
                    let disk =
                        lab.images.iter().position(|image| image.label().pv.id == vg.pvs[pv.0].id).unwrap();
                    format!("{}:{extent}-{}", lab.devices[disk], extent + count - 1)
                }
                Area::Lv { lv, extent } => format!("{}:{extent}-{}", lv_name(lv), extent + count - 1),
            })
            .collect();
        if !ranges.is_empty() {
            assert_eq!(ranges.join(" "), row["seg_pe_ranges"], "{name}");
        }
        match &segment.kind {
            SegmentType::Striped { stripe_size, stripes } => {
                assert_eq!(
                    (stripes.len().to_string(), stripe_size.to_string()),
                    (bare("stripes"), bare("stripe_size"))
                );
            }
            SegmentType::Raid { images, stripe_size, region_size, .. } => {
                assert_eq!(
                    (images.len().to_string(), stripe_size.to_string()),
                    (bare("stripes"), bare("stripe_size"))
                );
                assert_eq!(region_size.to_string(), row["region_size"], "{name}");
                let ranges: Vec<&str> = images.iter().map(|image| lv_name(*image)).collect();
                let reported: Vec<&str> = row["seg_pe_ranges"].split([' ', ':']).step_by(2).collect();
                assert_eq!(ranges, reported);
            }
            SegmentType::ThinPool { chunk_size, .. } => assert_eq!(chunk_size.to_string(), row["chunk_size"]),
            SegmentType::Thin { pool, origin, .. } => {
                assert_eq!(
                    (lv_name(*pool), origin.map_or("", lv_name)),
                    (&*bare("pool_lv"), &*bare("origin"))
                );
            }
            SegmentType::Cache { pool, origin, .. } => {
                assert_eq!((lv_name(*pool), lv_name(*origin)), (&*bare("pool_lv"), &*bare("origin")));
            }
            _ => {}
        }
    }
}

#[test]
fn what_lvm_makes_is_read_with_the_numbers_that_it_reports() {
    let lab = Lab::new(3, 96);
    lab.make_pv(0, &["--pvmetadatacopies", "2"]);
    lab.make_pv(1, &["--bootloaderareasize", "1m"]);
    lab.make_pv(2, &[]);
    let devices: Vec<&str> = lab.devices.iter().map(String::as_str).collect();
    lab.lvm(&[&["vgcreate", "-q", "-s", "1m", "vg-a.b", "--addtag", "tag1"], &devices[..]].concat());
    lab.lvm(&["pvchange", "-q", "--metadataignore", "y", devices[2]]);
    lab.lvm(&["pvchange", "-q", "--addtag", "slow", devices[1]]);
    let make = |options: &[&str]| {
        lab.lvm(&[&["lvcreate", "-q", "-y", "-an", "-Zn", "-Wn"], options, &["vg-a.b"]].concat())
    };
    make(&["-l", "5", "-n", "lin", "--addtag", "x", "--addtag", "y"]);
    make(&["-l", "9", "-i", "3", "-I", "64", "-n", "str"]);
    make(&["-l", "1", "-n", "gap", "-r", "none"]);
    lab.lvm(&["lvextend", "-q", "-l", "+4", "vg-a.b/lin"]);

    let label = lab.images[1].label();
    assert_eq!(label.pv.extension.as_ref().unwrap().bootloader_areas.len(), 1);
    assert_eq!(lab.images[0].headers().len(), 2);
    assert!(lab.images[2].headers()[0].ignored() && !lab.images[1].headers()[0].ignored());
    for image in &lab.images[..2] {
        let mut sector = [0; 512];
        image.read_at(512, &mut sector).unwrap();
        assert_eq!(image.label().encode().unwrap(), sector);
        for header in image.headers() {
            image.read_at(header.area.offset, &mut sector).unwrap();
            assert_eq!(header.encode(), sector);
            let text = header.read_text(image, &header.committed().unwrap()).unwrap();
            let tree = Section::parse(&text).unwrap();
            assert_same_text(&tree.print(Style::Disk), &without_comments(&text));
            let vg = VolumeGroup::from_tree(&tree).unwrap();
            assert_eq!((vg.unknown_status(), vg.tags.as_slice()), (vec![], &["tag1".to_owned()][..]));
            assert_as_reported(&lab, &vg);
        }
    }
}

#[test]
fn a_text_with_every_type_is_restored_by_lvm_and_means_the_same_here() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/lvm2/every_type.vg");
    let text = fs::read(&file).unwrap();
    let tree = Section::parse(&text).unwrap();
    assert_same_text(&tree.print(Style::File), &String::from_utf8(text).unwrap());
    let by_hand = VolumeGroup::from_tree(&tree).unwrap();

    let lab = Lab::new(4, 512);
    for (disk, pv) in by_hand.pvs.iter().enumerate() {
        lab.make_pv(disk, &["--norestorefile", "--uuid", &pv.id.to_string()]);
    }
    lab.lvm(&["vgcfgrestore", "-q", "--force", "-f", file.to_str().unwrap(), "every"]);
    let text = lab.images[3].text();
    assert_same_text(&Section::parse(&text).unwrap().print(Style::Disk), &without_comments(&text));
    let restored = VolumeGroup::from_text(&text).unwrap();
    assert_as_reported(&lab, &restored);

    let backup = lab.folder.path().join("backup");
    lab.lvm(&["vgcfgbackup", "-q", "-f", backup.to_str().unwrap(), "every"]);
    let text = fs::read(&backup).unwrap();
    assert_same_text(&Section::parse(&text).unwrap().print(Style::File), &without_comments(&text));

    // LVM sorts the LVs; what is in them stays.
    for lv in &by_hand.lvs {
        let other = &restored.lvs[restored.lv(&lv.name).unwrap().0];
        assert_eq!((lv.id, &lv.flags, &lv.tags), (other.id, &other.flags, &other.tags));
        assert_eq!(lv.segments.len(), other.segments.len());
        for (one, other) in lv.segments.iter().zip(&other.segments) {
            let kinds = [&one.kind, &other.kind].map(std::mem::discriminant);
            assert_eq!(kinds[0], kinds[1], "{}", lv.name);
            assert_ne!(one.kind, SegmentType::Unknown, "{}", lv.name);
        }
    }
}

#[test]
fn texts_that_go_round_in_the_ring_are_taken_by_vgck_wherever_they_lie() {
    let lab = Lab::new(2, 64);
    lab.make_pv(0, &["--pvmetadatacopies", "2"]);
    lab.make_pv(1, &[]);
    lab.lvm(&["vgcreate", "-q", "vg0", &lab.devices[0], &lab.devices[1]]);
    lab.lvm(&["lvcreate", "-q", "-y", "-an", "-Zn", "-Wn", "-l", "3", "-n", "lv0", "vg0"]);
    let mut tree = Section::parse(&lab.images[0].text()).unwrap();
    let mut seqno = VolumeGroup::from_tree(&tree).unwrap().seqno;
    let filler = "long ".repeat(20_000);
    let section = tree.section_mut("vg0").unwrap();
    section.set("key_of_the_future", filler.as_str().into());
    let lvs = section.section_mut("logical_volumes").unwrap();
    let lv = lvs.remove("lv0").unwrap();
    lvs.set("renamed", lv);
    let (mut wrapped, mut checked) = (0, 0);
    while wrapped < 2 {
        seqno += 1;
        let number = i64::try_from(seqno).unwrap();
        tree.section_mut("vg0").unwrap().set("seqno", number.into());
        let text = tree.print(Style::Disk);
        let places: Vec<_> = lab.images.iter().map(|image| image.commit(&text)).collect();
        let area = lab.images[0].headers()[0].area;
        wrapped += u32::from(places[0].offset + places[0].size > area.size);
        for image in &lab.images {
            for header in image.headers() {
                let again = header.read_text(image, &header.committed().unwrap()).unwrap();
                assert_eq!(again, [&text[..], &[0]].concat());
            }
        }
        lab.check(&["vgck", "vg0"]);
        lab.check(&["pvck", &lab.devices[1]]);
        assert_as_reported(&lab, &VolumeGroup::from_tree(&tree).unwrap());
        checked += 1;
        assert!(checked < 100, "a ring of 1 MiB is round after some texts of 100 KB");
    }
    let dump = lab.lvm(&["pvck", "--dump", "headers", &lab.devices[0]]);
    assert!(dump.contains(&format!("seqno {seqno}")), "{dump}");
    // The next change is LVM's own.
    lab.lvm(&["vgchange", "-q", "--addtag", "after", "vg0"]);
    let vg = VolumeGroup::from_text(&lab.images[1].text()).unwrap();
    assert_eq!((vg.seqno, vg.tags.as_slice()), (seqno + 1, &["after".to_owned()][..]));
}

/// The text with every value that stands in one line once more behind itself, as another one.
fn with_values_again(text: &str) -> String {
    let again = |line: &str| {
        let (key, value) = line.split_once(" = ")?;
        let other = match value.as_bytes() {
            [b'"', ..] => "\"another\"",
            [b'[', .., b']'] => "[\"ANOTHER\"]",
            [b'0'..=b'9', ..] => "123456789",
            _ => return None,
        };
        Some(format!("{key} = {other}\n"))
    };
    text.lines().map(|line| format!("{line}\n{}", again(line).unwrap_or_default())).collect()
}

#[test]
fn of_a_value_that_stands_twice_lvm_takes_the_first_too_and_a_section_that_does_is_refused() {
    let lab = Lab::new(1, 64);
    lab.make_pv(0, &[]);
    lab.lvm(&["vgcreate", "-q", "-s", "1m", "vg0", &lab.devices[0]]);
    lab.lvm(&["lvcreate", "-q", "-y", "-an", "-Zn", "-Wn", "-l", "3", "-n", "lv0", "--addtag", "x", "vg0"]);
    let tree = Section::parse(&lab.images[0].text()).unwrap();
    let text = String::from_utf8(tree.print(Style::Disk)).unwrap();
    let twice = with_values_again(&text);
    assert!(twice.lines().count() > text.lines().count() + 20, "{twice}");
    lab.images[0].commit(twice.as_bytes());
    assert_eq!(Section::parse(twice.as_bytes()).as_ref(), Ok(&tree));
    let vg = VolumeGroup::from_text(&lab.images[0].text()).unwrap();
    assert_as_reported(&lab, &vg);
    let said = vg.repeated.expect("it is noted").to_string();
    assert!(said.ends_with("expected each key once; the first one counts, as for LVM"), "{said}");
    // What LVM writes then has each once.
    lab.lvm(&["vgchange", "-q", "--addtag", "after", "vg0"]);
    let after = VolumeGroup::from_text(&lab.images[0].text()).unwrap();
    assert_eq!((after.repeated, after.seqno), (None, vg.seqno + 1));
    for (path, name) in
        [(&["vg0", "logical_volumes"][..], "lv0"), (&["vg0", "logical_volumes", "lv0"], "segment1")]
    {
        let mut twice = tree.clone();
        let section = path.iter().fold(&mut twice, |at, key| at.section_mut(key).expect("a section"));
        section.entries.push(section.entry(name).expect("an entry").clone());
        let twice = twice.print(Style::Disk);
        lab.images[0].commit(&twice);
        assert!(!lab.run(&["lvs", "vg0"]).status.success(), "{name}");
        let said = VolumeGroup::from_text(&twice).unwrap_err().to_string();
        assert!(said.contains(&format!("a key is \"{name}\" again")), "{said}");
    }
}

#[test]
fn a_disk_that_was_laid_out_here_is_a_physical_volume_to_lvm() {
    let lab = Lab::new(1, 64);
    let image = &lab.images[0];
    let id = Uuid::from_compact(b"0123456789abcdefghijABCDEFGHIJ01").unwrap();
    let areas =
        [DiskArea { offset: 4096, size: (1 << 20) - 4096 }, DiskArea { offset: 63 << 20, size: 1 << 20 }];
    let label = Label {
        sector: 1,
        pv: PvHeader {
            id,
            device_bytes: 64 << 20,
            data_areas: vec![DiskArea { offset: 1 << 20, size: 62 << 20 }],
            metadata_areas: areas.to_vec(),
            extension: Some(Extension { version: 2, flags: Extension::IN_USE, bootloader_areas: Vec::new() }),
        },
    };
    image.write(512, &label.encode().unwrap());
    for area in areas {
        image.write(area.offset, &AreaHeader::new(area).unwrap().encode());
    }
    let text = format!(
        "own {{ id = \"AAAAAA-VGid-0000-0000-0000-0000-000000\" seqno = 1 format = \"lvm2\" status = [\"RESIZEABLE\", \"READ\", \
         \"WRITE\"] extent_size = 2048 max_lv = 0 max_pv = 0 physical_volumes {{ pv0 {{ id = \"{id}\" status = [\"ALLOCATABLE\"] \
         dev_size = 131072 pe_start = 2048 pe_count = 62 }} }} }} contents = \"Text Format Volume Group\" version = 1 \
         description = \"by \\\"us\\\"\" creation_host = \"h\" creation_time = 1700000000"
    );
    let tree = Section::parse(text.as_bytes()).unwrap();
    image.commit(&tree.print(Style::Disk));
    assert_eq!(image.label(), label);
    lab.check(&["vgck", "own"]);
    lab.check(&["pvck", &lab.devices[0]]);
    assert_as_reported(&lab, &VolumeGroup::from_tree(&tree).unwrap());
    lab.lvm(&["lvcreate", "-q", "-y", "-an", "-Zn", "-Wn", "-l", "100%FREE", "-n", "all", "own"]);
    let vg = VolumeGroup::from_text(&image.text()).unwrap();
    assert_eq!((vg.seqno, vg.lv_sectors(vg.lv("all").unwrap())), (2, 62 * 2048));
    assert!(image.path.starts_with(lab.folder.path()));
}

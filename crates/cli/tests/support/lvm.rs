//! Disks with a volume group, ours by their names, and LVM's own tools that judge what we have made of them.
//!
//! LVM runs on loop devices, without the kernel's device mapper (`--driverloaded n`): it reads and writes metadata, and
//! activates nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::FileExt;

use serde_json::Value;

use super::fs::Loop;
use super::nbd::python;
use super::{Scratch, both, output, run, run_refused, thin_dump, tool};

const MIB: u64 = 1 << 20;

/// Of the groups that our verbs make: size of an extent, and where the first one lies on a disk.
pub const EXTENT: usize = 4 << 20;
pub const PE_START: usize = 1 << 20;

/// Disks, ours by their names, and LVM's as loop devices while it runs.
pub struct Lab {
    pub scratch: Scratch,
    disks: Vec<String>,
}

impl Lab {
    pub fn new(disks: &[(&str, u64)]) -> Lab {
        let scratch = Scratch::new();
        disks.iter().for_each(|(name, mib)| drop(scratch.sparse(name, mib * MIB)));
        Lab { scratch, disks: disks.iter().map(|(name, _)| (*name).to_owned()).collect() }
    }

    pub fn args<'a>(&'a self, args: &[&'a str]) -> Vec<&'a str> {
        let mut all = args.to_vec();
        all.push("--disk");
        all.extend(self.disks.iter().map(String::as_str));
        all
    }

    /// A verb of ours, on all disks; then LVM looks at them.
    pub fn verb(&self, args: &[&str]) -> String {
        let said = run(&mut self.scratch.blockwork(self.args(args)));
        self.expect_sound();
        said
    }

    /// A verb of ours that must be refused, with one line, and not a byte changed.
    pub fn refused(&self, args: &[&str]) -> String {
        let before = self.bytes();
        let said = run_refused(&mut self.scratch.blockwork(self.args(args)));
        assert!(self.bytes() == before, "{args:?}: refused, and written to");
        assert!(said.starts_with("blockwork: error: ") && said.lines().count() == 1, "{said}");
        said
    }

    pub fn bytes(&self) -> Vec<Vec<u8>> {
        self.disks.iter().map(|disk| self.scratch.read(disk)).collect()
    }

    pub fn restore(&self, images: &[Vec<u8>]) {
        for (disk, image) in self.disks.iter().zip(images) {
            self.scratch.write(disk, image);
        }
    }

    /// LVM's commands, one after the other, each with the devices in place of `DISKS` and of `DISK0`, ...; what they printed.
    pub fn lvm(&self, commands: &[&str]) -> Vec<String> {
        self.lvm_on(&self.loops(), commands)
    }

    /// What each volume lies on, with first extents, as LVM tells it to who has given it the first `disks` disks. Those are called by our names.
    pub fn areas_by_lvm(&self, disks: usize) -> BTreeMap<String, String> {
        let loops = &self.loops()[..disks];
        let mut said =
            self.lvm_on(loops, &["lvs -a --noheadings --separator = -o lv_name,devices vg"]).remove(0);
        for (device, disk) in loops.iter().zip(&self.disks) {
            // With what follows: the name of one may begin that of another.
            said = said.replace(&format!("{}(", device.device), &format!("{disk}("));
        }
        let mut areas = BTreeMap::<String, Vec<&str>>::new();
        // A line for each segment, and what is missing is told of besides.
        for (name, lies_on) in said.lines().filter_map(|line| line.trim().split_once('=')) {
            areas.entry(name.trim_matches(['[', ']']).to_owned()).or_default().push(lies_on);
        }
        areas.into_iter().map(|(name, segments)| (name, segments.join(","))).collect()
    }

    /// The volumes, and parts of such, that LVM calls partial where it lacks a disk.
    pub fn partial_by_lvm(&self, without: &str) -> BTreeSet<String> {
        let health = self.field_by_lvm("lv_health_status", Some(without));
        health.into_iter().filter(|(_, it)| it == "partial").map(|(name, _)| name).collect()
    }

    /// What `lvs` has of each volume, and part of such, where it has all disks, or all but one.
    pub fn field_by_lvm(&self, field: &str, without: Option<&str>) -> BTreeMap<String, String> {
        let here = self.disks.iter().filter(|disk| without.is_none_or(|without| *disk != without));
        let loops: Vec<Loop> = here.map(|disk| Loop::with(&[], &self.scratch.at(disk))).collect();
        let command = format!("lvs -a --noheadings --separator = -o lv_name,{field} vg");
        let said = self.lvm_on(&loops, &[&command]).remove(0);
        // What is missing is told of besides.
        let fields = said.lines().filter_map(|line| line.trim().split_once('='));
        fields.map(|(name, it)| (name.trim_matches(['[', ']']).to_owned(), it.to_owned())).collect()
    }

    fn loops(&self) -> Vec<Loop> {
        self.disks.iter().map(|disk| Loop::with(&[], &self.scratch.at(disk))).collect()
    }

    /// The same, or why LVM refuses one of them.
    pub fn try_lvm(&self, commands: &[&str]) -> Result<Vec<String>, String> {
        self.try_lvm_on(&self.loops(), commands)
    }

    #[track_caller]
    fn lvm_on(&self, loops: &[Loop], commands: &[&str]) -> Vec<String> {
        self.try_lvm_on(loops, commands).unwrap_or_else(|why| panic!("{why}"))
    }

    fn try_lvm_on(&self, loops: &[Loop], commands: &[&str]) -> Result<Vec<String>, String> {
        let ours: String = loops.iter().map(|it| format!("\"a|^{}$|\",", it.device)).collect();
        let configuration = format!(
            "devices {{ obtain_device_list_from_udev = 0 use_devicesfile = 0 external_device_info_source = \"none\"\n\
             global_filter = [{ours} \"r|.*|\"] }}\n\
             global {{ use_lvmpolld = 0 use_lvmlockd = 0 event_activation = 0 locking_dir = \"{}\" }}\n\
             activation {{ udev_sync = 0 udev_rules = 0 monitoring = 0 }}\n\
             backup {{ backup = 0 archive = 0 }}\n",
            self.scratch.at("locks")
        );
        fs::create_dir_all(self.scratch.path("lvm")).expect("a folder");
        fs::write(self.scratch.path("lvm").join("lvm.conf"), configuration).expect("a file");
        let one = |command: &&str| {
            let words = command.split_whitespace().flat_map(|word| match word {
                "DISKS" => loops.iter().map(|it| it.device.clone()).collect(),
                _ => match word.strip_prefix("DISK").and_then(|number| number.parse::<usize>().ok()) {
                    Some(number) => vec![loops[number].device.clone()],
                    None => vec![word.to_owned()],
                },
            });
            let mut lvm = tool("lvm");
            lvm.args(words).args(["--driverloaded", "n"]);
            lvm.env("LVM_SYSTEM_DIR", self.scratch.path("lvm")).env("LVM_SUPPRESS_FD_WARNINGS", "1");
            let done = output(&mut lvm);
            if !done.status.success() {
                return Err(format!("lvm {command}: {}", both(&done)));
            }
            let said = both(&done);
            let lines = said.lines().filter(|line| !line.contains("Activation disabled"));
            Ok(lines.map(|line| format!("{line}\n")).collect())
        };
        commands.iter().map(one).collect()
    }

    /// Makes the old snapshots of one volume those of another, as the text has them: LVM gives them to thin volumes, which the verbs here
    /// do not.
    pub fn move_snapshots(&self, from: &str, to: &str) {
        self.edit(&format!("origin = \"{from}\""), &format!("origin = \"{to}\""));
    }

    /// Has LVM write a text of the group in which something is replaced.
    pub fn edit(&self, from: &str, to: &str) {
        self.edit_by(|text| text.replace(from, to));
    }

    /// The same, in which more is changed.
    pub fn edit_by(&self, change: impl Fn(&str) -> String) {
        let file = self.scratch.at("text");
        self.lvm(&[&format!("vgcfgbackup -f {file} vg")]);
        let before = fs::read_to_string(&file).expect("LVM has written it");
        let after = change(&before);
        assert_ne!(before, after, "there is nothing to change");
        fs::write(&file, after).expect("a file");
        self.lvm(&[&format!("vgcfgrestore -y --force -f {file} vg")]);
    }

    /// Puts a part of a pool on a RAID volume of its size, as `lvconvert` does, which wants the kernel: that is the part from then on.
    pub fn put_on_raid(&self, part: &str, raid: &str) {
        self.edit_by(|text| {
            let at = text.find(&format!("\t\t{part} {{")).expect("a part");
            let end = at + text[at..].find("\n\t\t}\n").expect("an end") + "\n\t\t}\n".len();
            let text = [&text[..at], &text[end..]].concat();
            let text = text.replace(&format!("\t\t{raid} {{"), &format!("\t\t{part} {{"));
            let text = text.replace(&format!("\"{raid}_r"), &format!("\"{part}_r"));
            let mut text = text.replace(&format!("\t\t{raid}_r"), &format!("\t\t{part}_r"));
            let volume = text.split_off(text.find(&format!("\t\t{part} {{")).expect("a volume"));
            text + &volume.replacen(", \"VISIBLE\"", "", 1)
        });
        self.expect_sound();
    }

    /// Gives a volume tags: a text is longer than a page of a file from then on, so the next one of it needs a new page.
    pub fn tag_until_a_text_takes_pages(&self, volume: &str) {
        let tags = ["p", "q", "r", "s", "t"].map(|tag| tag.repeat(1000));
        let added: Vec<&str> = tags.iter().flat_map(|tag| ["--addtag", tag.as_str()]).collect();
        self.verb(&[&["lv", "tag", volume], &added[..]].concat());
    }

    /// Puts a partition of 8 MiB from 1 MiB on on an export of the server that runs. It is found when that is started anew.
    pub fn partition(&self, export: &str) {
        python(&format!(
            "import struct\nh = connect({:?})\n\
             entry = struct.pack('<B3sB3sII', 0, b'\\0\\0\\0', 0x83, b'\\0\\0\\0', 2048, 16384)\n\
             h.pwrite(b'\\0' * 446 + entry + b'\\0' * 48 + b'\\x55\\xaa', 0)\nh.flush()\n",
            self.scratch.uri(export)
        ));
    }

    /// LVM finds nothing to complain of.
    pub fn expect_sound(&self) {
        let said = self.lvm(&["vgck vg", "pvck DISKS", "pvs --noheadings -o pv_in_use,pv_ext_vsn,vg_name"]);
        assert_eq!(said[0], "", "vgck");
        let complaints: Vec<&str> = said[1].lines().filter(|line| !line.contains("Found")).collect();
        assert_eq!(complaints, [] as [&str; 0], "pvck");
        for line in said[2].lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            assert!(words == ["used", "2", "vg"] || words == ["2"], "pvs: {line}");
        }
    }

    /// Where the metadata of a pool lies on the first disk, in one piece or in pieces of one size: where they begin, and how long they are.
    pub fn metadata_places(&self, pool: &str) -> (Vec<u64>, usize) {
        let shown = |args: &[&str]| -> Value {
            let said = run(&mut self.scratch.blockwork(self.args(args)));
            serde_json::from_str(&said).expect("JSON")
        };
        let extent = shown(&["vg", "show", "--json", "vg"])[0]["extent_bytes"].as_u64().expect("a size");
        let volumes = shown(&["lv", "show", "--all", "--json", "vg"]);
        let part = format!("{pool}_tmeta");
        let part = volumes.as_array().expect("volumes").iter().find(|lv| lv["name"] == *part);
        let part = part.expect("a map");
        let size = usize::try_from(part["bytes"].as_u64().expect("a size")).expect("it fits");
        let areas = part["areas"].as_array().expect("places");
        assert_eq!(size % areas.len(), 0);
        let start = |area: &Value| {
            let place = area.as_str().and_then(|area| area.split_once('('));
            let (disk, extents) = place.expect("a disk and a place");
            assert_eq!(disk, self.disks[0]);
            let at = extents.strip_suffix(')').and_then(|at| at.parse::<u64>().ok());
            PE_START as u64 + at.expect("a number") * extent
        };
        (areas.iter().map(start).collect(), size / areas.len())
    }

    /// A file with that metadata.
    pub fn metadata(&self, pool: &str) -> String {
        let (starts, length) = self.metadata_places(pool);
        let disk = fs::File::open(self.scratch.path(&self.disks[0])).expect("a disk");
        let piece = |start: u64| {
            let mut bytes = vec![0; length];
            disk.read_exact_at(&mut bytes, start).expect("it is there");
            bytes
        };
        let bytes: Vec<u8> = starts.into_iter().flat_map(piece).collect();
        self.scratch.write("map", bytes)
    }

    /// What `thin_dump` makes of a pool on the first disk.
    pub fn dumped(&self, pool: &str) -> String {
        thin_dump(&self.metadata(pool))
    }

    /// Fields of all volumes, as LVM tells them, by name.
    pub fn columns(&self, fields: &str) -> Vec<String> {
        let command =
            format!("lvs -a --noheadings --separator ; --units m --nosuffix -O lv_name -o {fields} vg");
        self.lvm(&[&command]).remove(0).lines().map(|line| line.trim().to_owned()).collect()
    }

    /// Where all volumes lie, as LVM tells: by name, each segment with its extents and its places.
    pub fn layout(&self, group: &str) -> Vec<String> {
        let command = format!(
            "lvs -a --noheadings -O lv_name,seg_start_pe --separator ; --units s --nosuffix \
             -o lv_name,segtype,seg_start_pe,seg_size_pe,stripes,stripe_size,region_size,seg_le_ranges,lv_tags {group}"
        );
        let loops = self.loops();
        let said = self.lvm_on(&loops, &[&command]).remove(0);
        // Devices differ from run to run, also in their order.
        let plain = |line: &str| {
            let mut words = line.trim().to_owned();
            for (number, one) in loops.iter().enumerate() {
                words = words.replace(&format!("{}:", one.device), &format!("DISK{number}:"));
            }
            words
        };
        said.lines().map(plain).collect()
    }
}

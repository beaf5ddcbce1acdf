//! A pool's metadata in memory, as its owner has it: what is on the device, what of that was read, and the editor. Beside it a plain model
//! of what the pool must be, and the tools that judge.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::ops::Range;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use blockwork_format::thin::build::{Contents, build};
use blockwork_format::thin::edit::{Commit, EditError, Editor};
use blockwork_format::thin::{
    BITMAP_ENTRIES, BLOCK_BYTES, Bitmap, Block, DeviceDetails, MetadataIndex, Superblock,
};

use crate::tool;

/// What a device is to be.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Device {
    pub details: DeviceDetails,
    /// Virtual block → data block, time.
    pub mappings: BTreeMap<u64, (u64, u32)>,
}

/// What a pool is to be.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Model {
    pub time: u32,
    pub transaction_id: u64,
    pub devices: BTreeMap<u64, Device>,
    /// What the metadata snapshot refers to.
    pub held: Option<BTreeMap<u64, Device>>,
}

impl Model {
    /// How many mappings lead to each data block, as far as the counts of its space map know: what a device and the snapshots that
    /// still share its nodes have is counted once there, so only zero and not zero can be told from here.
    pub fn used(&self) -> BTreeSet<u64> {
        let devices = self.devices.values().chain(self.held.iter().flat_map(BTreeMap::values));
        devices.flat_map(|device| device.mappings.values().map(|(block, _)| *block)).collect()
    }
}

/// A pool's metadata device with its editor.
pub struct Pool {
    pub device: Vec<u8>,
    pub read: BTreeMap<u64, Arc<Block>>,
    pub editor: Editor,
    /// A commit is being written.
    pub is_committing: bool,
}

impl Pool {
    /// An empty pool.
    pub fn new(data_blocks: u64, metadata_blocks: u64) -> Pool {
        let contents =
            Contents { data_block_sectors: 128, data_blocks, metadata_blocks, ..Contents::default() };
        let mut device = vec![0; usize::try_from(metadata_blocks).unwrap() * BLOCK_BYTES];
        for piece in build(&contents).unwrap() {
            let at = usize::try_from(piece.offset).unwrap();
            device[at..at + piece.bytes.len()].copy_from_slice(&piece.bytes);
        }
        Pool::open(device)
    }

    /// The pool on a device.
    pub fn open(device: Vec<u8>) -> Pool {
        let superblock = Superblock::decode(block(&device, 0).unwrap()).unwrap().unwrap();
        let editor = Editor::new(superblock, u64::try_from(device.len() / BLOCK_BYTES).unwrap()).unwrap();
        Pool { device, read: BTreeMap::new(), editor, is_committing: false }
    }

    /// Does an operation; what it needs is read, and a transaction that has used up what is free is committed.
    pub fn op<T>(
        &mut self,
        mut op: impl FnMut(&mut Editor, &BTreeMap<u64, Arc<Block>>) -> Result<T, EditError>,
    ) -> Result<T, EditError> {
        loop {
            match op(&mut self.editor, &self.read) {
                Err(EditError::Missing(nr)) => self.fetch(nr),
                Err(EditError::NoMetadata) if self.editor.is_dirty() && !self.is_committing => self.commit(),
                result => return result,
            }
        }
    }

    /// Reads a block that is not in memory.
    pub fn fetch(&mut self, nr: u64) {
        let found = block(&self.device, nr).unwrap_or_else(|| panic!("block {nr} is beyond the end"));
        assert!(self.read.insert(nr, Arc::new(*found)).is_none(), "block {nr} is there");
    }

    /// What is written before the superblock, and then that.
    pub fn commit(&mut self) {
        self.commit_and(|_| {});
    }

    /// As [`Pool::commit`]; looks at the device as it is before the superblock is written.
    pub fn commit_and(&mut self, before: impl FnOnce(&[u8])) {
        let commit = self.begin_commit();
        self.end_commit(&commit, before);
        assert!(!self.editor.is_dirty());
    }

    pub fn begin_commit(&mut self) -> Commit {
        let commit = self.op(|editor, read| editor.commit(read)).unwrap();
        self.is_committing = true;
        commit
    }

    pub fn end_commit(&mut self, commit: &Commit, before: impl FnOnce(&[u8])) {
        assert!(commit.writes.windows(2).all(|pair| pair[0].0 < pair[1].0), "in rising order");
        let last = self.metadata_in_use();
        for (nr, bytes) in &commit.writes {
            assert!(!last.contains(nr), "block {nr} is in use by the last committed state");
            let at = usize::try_from(*nr).unwrap() * BLOCK_BYTES;
            self.device[at..at + BLOCK_BYTES].copy_from_slice(&bytes[..]);
            self.read.insert(*nr, bytes.clone());
        }
        before(&self.device);
        self.device[..BLOCK_BYTES].copy_from_slice(&commit.superblock[..]);
        self.editor.committed();
        self.is_committing = false;
    }

    /// Metadata blocks that the last committed state uses, as its own space map has it.
    fn metadata_in_use(&self) -> BTreeSet<u64> {
        let whole = |nr| block(&self.device, nr).unwrap();
        let root = Superblock::decode(whole(0)).unwrap().unwrap().metadata_space_map;
        let index = MetadataIndex::decode(root.bitmap_root, whole(root.bitmap_root), root.bitmaps()).unwrap();
        let bitmaps = index.entries.iter().map(|entry| (entry.block, whole(entry.block)));
        let bitmaps = bitmaps.map(|(nr, bytes)| Bitmap::decode(nr, Box::new(*bytes)).unwrap()).zip(0u64..);
        let used = bitmaps.flat_map(|(bitmap, nth)| {
            let used = (0..BITMAP_ENTRIES).filter(move |entry| bitmap.get(*entry) > 0);
            used.map(move |entry| nth * BITMAP_ENTRIES + entry)
        });
        used.collect()
    }

    /// A run of free data blocks, mapped.
    pub fn map_new(&mut self, device: u64, first: u64, most: u64) -> Result<Range<u64>, EditError> {
        let data = self.op(|editor, read| editor.allocate(read, most))?;
        match self.op(|editor, read| editor.map(read, device, first, data.clone())) {
            Ok(_) => Ok(data),
            Err(error) => {
                self.editor.release(data);
                Err(error)
            }
        }
    }
}

fn block(device: &[u8], nr: u64) -> Option<&Block> {
    let at = usize::try_from(nr).ok()? * BLOCK_BYTES;
    device.get(at..at + BLOCK_BYTES)?.try_into().ok()
}

/// `thin_check` has nothing to say of a metadata device.
pub fn check(device: &[u8], folder: &Path) {
    let file = folder.join("metadata");
    fs::write(&file, device).unwrap();
    let output = tool::output(Command::new("thin_check").arg(&file), "thin-provisioning-tools");
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "thin_check: {}", String::from_utf8_lossy(&said));
}

/// What `thin_dump` reads from a metadata device.
pub fn dump(device: &[u8], folder: &Path) -> Model {
    let file = folder.join("metadata");
    fs::write(&file, device).unwrap();
    let output = tool::output(Command::new("thin_dump").arg(&file), "thin-provisioning-tools");
    assert!(output.status.success(), "thin_dump: {}", String::from_utf8_lossy(&output.stderr));
    let (mut model, mut device) = (Model::default(), 0);
    for line in String::from_utf8(output.stdout).unwrap().lines() {
        let field = |name: &str| -> u64 {
            let rest =
                line.split(&format!(" {name}=\"")).nth(1).unwrap_or_else(|| panic!("{name} in {line}"));
            rest.split('"').next().unwrap().parse().unwrap()
        };
        let time = |name| u32::try_from(field(name)).unwrap();
        match line.trim_start().split(' ').next().unwrap() {
            "<superblock" => (model.time, model.transaction_id) = (time("time"), field("transaction")),
            "<device" => {
                device = field("dev_id");
                let details = DeviceDetails {
                    mapped_blocks: field("mapped_blocks"),
                    transaction_id: field("transaction"),
                    creation_time: time("creation_time"),
                    snapshotted_time: time("snap_time"),
                };
                model.devices.insert(device, Device { details, ..Device::default() });
            }
            "<range_mapping" => {
                let mappings = &mut model.devices.get_mut(&device).unwrap().mappings;
                mappings.extend(
                    (0..field("length"))
                        .map(|n| (field("origin_begin") + n, (field("data_begin") + n, time("time")))),
                );
            }
            "<single_mapping" => {
                let mappings = &mut model.devices.get_mut(&device).unwrap().mappings;
                mappings.insert(field("origin_block"), (field("data_block"), time("time")));
            }
            _ => {}
        }
    }
    model
}

/// SplitMix64: small, and the same everywhere.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// 0 up to `end`, which is not reached.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }
}

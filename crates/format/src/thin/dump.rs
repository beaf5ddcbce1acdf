//! All mappings of a pool as XML, in the form and the words of `thin_dump`: for comparing two pools, and for people.

use std::fmt::{self, Write};

use crate::FormatError;

use super::node::Node;
use super::superblock::Superblock;
use super::tree::{Place, Reader, Visitor};
use super::value::{BlockTime, DeviceDetails};
use super::{BlockKind, DEVICES_MAX};

/// Why there is no dump.
#[derive(Debug, thiserror::Error)]
pub enum DumpError {
    /// The metadata.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// Where it is written to.
    #[error("the dump cannot be written")]
    Write(#[from] fmt::Error),
}

/// Mappings that follow each other on both sides and are of one time.
#[derive(Clone, Copy)]
struct Run {
    origin: u64,
    first: BlockTime,
    length: u64,
}

impl Run {
    fn takes(&self, origin: u64, mapping: BlockTime) -> bool {
        origin == self.origin + self.length
            && mapping.block == self.first.block + self.length
            && mapping.time == self.first.time
    }

    fn write(&self, out: &mut dyn Write) -> fmt::Result {
        let Run { origin, first: BlockTime { block, time }, length } = self;
        match length {
            1 => writeln!(
                out,
                "    <single_mapping origin_block=\"{origin}\" data_block=\"{block}\" time=\"{time}\"/>"
            ),
            _ => writeln!(
                out,
                "    <range_mapping origin_begin=\"{origin}\" data_begin=\"{block}\" length=\"{length}\" time=\"{time}\"/>"
            ),
        }
    }
}

struct Runs<'a> {
    out: &'a mut dyn Write,
    run: Option<Run>,
    /// The first failure to write, after which nothing is.
    failed: fmt::Result,
}

impl Runs<'_> {
    fn end(&mut self) {
        if let Some(run) = self.run.take()
            && self.failed.is_ok()
        {
            self.failed = run.write(self.out);
        }
    }
}

impl Visitor<BlockTime> for Runs<'_> {
    fn node(&mut self, _: Place, node: &Node<BlockTime>) -> Result<(), FormatError> {
        let Node::Leaf(leaf) = node else { return Ok(()) };
        for (origin, mapping) in leaf.iter() {
            match &mut self.run {
                Some(run) if run.takes(origin, mapping) => run.length += 1,
                _ => {
                    self.end();
                    self.run = Some(Run { origin, first: mapping, length: 1 });
                }
            }
        }
        Ok(())
    }
}

/// Writes all devices and their mappings to `out`.
///
/// # Errors
///
/// What cannot be read, or is damaged; a device of which only one of the two trees knows.
pub fn dump(reader: Reader<'_>, superblock: &Superblock, out: &mut dyn Write) -> Result<(), DumpError> {
    writeln!(
        out,
        "<superblock uuid=\"\" time=\"{}\" transaction=\"{}\" flags=\"{}\" version=\"{}\" data_block_size=\"{}\" nr_data_blocks=\"{}\">",
        superblock.time,
        superblock.transaction_id,
        superblock.other_flags | u32::from(superblock.needs_check),
        superblock.version,
        superblock.data_block_sectors,
        superblock.data_space_map.blocks,
    )?;
    let roots = reader.all::<u64>(superblock.mapping_root, DEVICES_MAX, "devices")?;
    for (id, root) in roots {
        let details = reader.look_up::<DeviceDetails>(superblock.details_root, id)?.ok_or_else(|| {
            let (found, expected) = (format!("no details of device {id}"), "details of each device");
            BlockKind::Node.wrong(superblock.details_root, 0, "device details", found, expected)
        })?;
        writeln!(
            out,
            "  <device dev_id=\"{id}\" mapped_blocks=\"{}\" transaction=\"{}\" creation_time=\"{}\" snap_time=\"{}\">",
            details.mapped_blocks, details.transaction_id, details.creation_time, details.snapshotted_time,
        )?;
        let mut runs = Runs { out, run: None, failed: Ok(()) };
        reader.walk::<BlockTime>(root, &mut runs)?;
        runs.end();
        runs.failed?;
        writeln!(out, "  </device>")?;
    }
    writeln!(out, "</superblock>")?;
    Ok(())
}

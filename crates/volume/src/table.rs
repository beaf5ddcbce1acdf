//! `--table FILE`: stacks in dmsetup's syntax, over disks named by path or over tables that stand before.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use blockwork_engine::{Layer, NodeId, NodeKind, Sector, Sectors};
use blockwork_format::escape;
use blockwork_format::table::{self, Below, Device, Target, TargetKind};
use blockwork_layer::{ErrorTarget, Linear, Segment, Stripe, Striped, Table, Zero};

use crate::assembly::Assembly;
use crate::error::VolumeError;
use crate::graph::{DeviceId, DeviceKind, NewDevice, Stack};
use crate::nodes::MAJOR_DM;

/// Assembles every device that `text` (the content of `path`) defines, and adds it as `dm/NAME`.
pub(crate) fn assemble(assembly: &mut Assembly, path: &str, text: &str) -> Result<(), VolumeError> {
    let parsed = table::parse(text)
        .map_err(|source| VolumeError::Table { path: path.to_owned(), source: Box::new(source) })?;
    let mut builder = Builder { assembly, path, devices: HashMap::new(), below: Vec::new() };
    for device in &parsed.devices {
        builder.device(device)?;
    }
    Ok(())
}

struct Builder<'a> {
    assembly: &'a mut Assembly,
    path: &'a str,
    /// Devices of this file so far, by name.
    devices: HashMap<String, DeviceId>,
    /// What the device that is being built stands upon.
    below: Vec<DeviceId>,
}

impl Builder<'_> {
    fn device(&mut self, device: &Device) -> Result<(), VolumeError> {
        let name = device.name.clone().unwrap_or_else(|| stem(self.path));
        let full = format!("dm/{name}");
        if self.assembly.graph.find(&full).is_some() {
            let line = device.targets.first().map_or(0, |target| target.line_number);
            return Err(self.refuse(line, format!("{full} is defined twice")));
        }
        let mut segments = Vec::new();
        for target in &device.targets {
            segments.push(Segment { start: Sector(target.start), target: self.target(&full, target)? });
        }
        let root: Arc<dyn Layer> = match &segments[..] {
            [only] => only.target.clone(),
            _ => {
                let node = self.node(&full, NodeKind::Table)?;
                let line = device.targets[0].line_number;
                let table =
                    Table::new(node, segments).map_err(|error| self.refuse(line, error.to_string()))?;
                Arc::new(table)
            }
        };
        let mut below = std::mem::take(&mut self.below);
        below.sort_unstable();
        below.dedup();
        let id = self.assembly.graph.add(NewDevice {
            name: full,
            kind: DeviceKind::Table,
            sectors: root.sectors(),
            below,
            stack: Stack::Ready(root),
            is_offered: true,
            read_only: None,
        });
        self.devices.insert(name, id);
        Ok(())
    }

    fn node(&mut self, name: &str, kind: NodeKind) -> Result<NodeId, VolumeError> {
        self.assembly.graph.nodes.add(name, kind, MAJOR_DM)
    }

    fn target(&mut self, device: &str, target: &Target) -> Result<Arc<dyn Layer>, VolumeError> {
        let line = target.line_number;
        let sectors = Sectors(target.length);
        let name = format!("{device} {}+{}", target.start, target.length);
        Ok(match &target.kind {
            TargetKind::Zero => Arc::new(Zero::new(self.node(&name, NodeKind::Zero)?, sectors)),
            TargetKind::Error => Arc::new(ErrorTarget::new(self.node(&name, NodeKind::Error)?, sectors)),
            TargetKind::Linear(below) => {
                let layer = self.below(line, below)?;
                let node = self.node(&name, NodeKind::Linear)?;
                let size = layer.sectors();
                let linear = Linear::new(node, layer, Sector(below.offset), sectors);
                Arc::new(linear.ok_or_else(|| {
                    let end = below.offset.saturating_add(target.length);
                    let what = format!(
                        "sectors {} to {end} of {} are asked for, which has {size}",
                        below.offset, below.dev
                    );
                    self.refuse(line, what)
                })?)
            }
            TargetKind::Striped { chunk, stripes } => {
                let chunk = Sectors(u64::from(*chunk));
                let mut members = Vec::new();
                for below in stripes {
                    members.push(Stripe { below: self.below(line, below)?, start: Sector(below.offset) });
                }
                let node = self.node(&name, NodeKind::Striped)?;
                let striped = Striped::new(node, chunk, members, sectors);
                Arc::new(striped.map_err(|error| self.refuse(line, error.to_string()))?)
            }
        })
    }

    /// What a target lies on: a device of this file, a volume, or a disk, which is opened.
    fn below(&mut self, line: u64, below: &Below) -> Result<Arc<dyn Layer>, VolumeError> {
        let id = self.device_below(line, below)?;
        self.below.push(id);
        self.assembly.layer(id).map_err(|why| self.refuse(line, format!("{}: {why}", escape(&below.dev))))
    }

    fn device_below(&mut self, line: u64, below: &Below) -> Result<DeviceId, VolumeError> {
        if let Some(name) = table::reference(&below.dev) {
            let of_file = self.devices.get(name).copied();
            let of_all = || self.assembly.graph.find(&format!("dm/{name}"));
            return of_file.or_else(of_all).ok_or_else(|| {
                self.refuse(
                    line,
                    format!(
                        "{:?} is not defined; a table can only use those that stand before it",
                        below.dev
                    ),
                )
            });
        }
        if let Some(id) = self.assembly.graph.find(&below.dev) {
            return Ok(id);
        }
        // Which line names a disk that cannot be opened is half of what there is to know about it.
        self.assembly.disk(&below.dev).map_err(|error| self.refuse(line, error.to_string()))
    }

    fn refuse(&self, line: u64, what: String) -> VolumeError {
        VolumeError::Target { path: self.path.to_owned(), line, what }
    }
}

/// A table's name where it has none of its own: its file's, without the extension.
fn stem(path: &str) -> String {
    Path::new(path).file_stem().map_or_else(|| "table".to_owned(), |stem| stem.to_string_lossy().into_owned())
}

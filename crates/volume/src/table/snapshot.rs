//! Snapshots in tables: all that a file has of one origin belong together, and are built when the first of them is met.

use std::collections::HashMap;
use std::sync::Arc;

use blockwork_engine::{Layer, Sectors};
use blockwork_format::escape;
use blockwork_format::snapshot::{Found, read};
use blockwork_format::table::{Persistence as PersistenceText, Snapshot, Table, Target, TargetKind};
use blockwork_layer::snapshot::{Family, Features, Persistence, StoreConfig};

use super::Builder;
use crate::error::VolumeError;
use crate::graph::DeviceId;

/// An origin with all the snapshots that a file has of it.
#[derive(Clone)]
pub(super) struct Kin {
    pub(super) family: Arc<Family>,
    /// Of each line of the file that is a snapshot of it, which of the family it is.
    pub(super) by_line: HashMap<u64, usize>,
    /// The devices with the stores.
    pub(super) stores: Vec<DeviceId>,
}

impl Builder<'_> {
    /// The family of the origin `dev`, which a line names.
    pub(super) fn kin(&mut self, line: u64, dev: &str) -> Result<Kin, VolumeError> {
        let origin = self.device_below(line, dev)?;
        if let Some(kin) = self.kin.get(&origin) {
            return Ok(kin.clone());
        }
        let layer = self.assembly.layer(origin);
        let layer = layer.map_err(|why| self.refuse(line, format!("{}: {why}", escape(dev))))?;
        let table: &Table = self.table;
        let (mut by_line, mut stores, mut configs) = (HashMap::new(), Vec::new(), Vec::new());
        let mut merging = None;
        for target in table.devices.iter().flat_map(|device| &device.targets) {
            let (TargetKind::Snapshot(snapshot) | TargetKind::SnapshotMerge(snapshot)) = &target.kind else {
                continue;
            };
            if self.known_device(&snapshot.origin.dev) != Some(origin) {
                continue;
            }
            let (store, config) = self.store(target, snapshot)?;
            if stores.contains(&store) {
                let what = format!("{} is the store of another snapshot", escape(&snapshot.store));
                return Err(self.refuse(target.line_number, what));
            }
            if matches!(target.kind, TargetKind::SnapshotMerge(_)) {
                self.check_merge(target.line_number, origin, merging)?;
                merging = Some(configs.len());
            }
            by_line.insert(target.line_number, configs.len());
            stores.push(store);
            configs.push(config);
        }
        let family = match merging {
            Some(nth) => Family::with_merge(layer, configs, nth),
            None => Family::new(layer, configs),
        };
        let family = family.map_err(|error| self.refuse(line, error.to_string()))?;
        let kin = Kin { family, by_line, stores };
        self.kin.insert(origin, kin.clone());
        Ok(kin)
    }

    /// While a snapshot is merged, its origin is seen through the merge alone: whoever wrote it directly would write what the
    /// merge overwrites.
    fn check_merge(&self, line: u64, origin: DeviceId, other: Option<usize>) -> Result<(), VolumeError> {
        if other.is_some() {
            return Err(self.refuse(line, "another snapshot is being merged into the same origin".into()));
        }
        let is_origin = |target: &&Target| match &target.kind {
            TargetKind::SnapshotOrigin(of) => self.known_device(&of.dev) == Some(origin),
            _ => false,
        };
        match self.table.devices.iter().flat_map(|device| &device.targets).find(is_origin) {
            None => Ok(()),
            Some(other) => {
                let what = format!(
                    "line {} has a snapshot-origin of the same origin; while a snapshot is merged into it, snapshot-merge takes \
                     its place",
                    other.line_number
                );
                Err(self.refuse(line, what))
            }
        }
    }

    fn store(
        &mut self,
        target: &Target,
        snapshot: &Snapshot,
    ) -> Result<(DeviceId, StoreConfig), VolumeError> {
        let line = target.line_number;
        let id = self.device_below(line, &snapshot.store)?;
        let refuse = |this: &Self, why: &dyn std::fmt::Display| {
            this.refuse(line, format!("{}: {why}", escape(&snapshot.store)))
        };
        let store: Arc<dyn Layer> = self.assembly.layer(id).map_err(|why| refuse(self, &why))?;
        let persistence = match snapshot.persistence {
            PersistenceText::Persistent => Persistence::Persistent { overflow: false },
            PersistenceText::PersistentOverflow => Persistence::Persistent { overflow: true },
            PersistenceText::Transient => Persistence::Transient,
        };
        let found = match persistence {
            Persistence::Transient => Found::New,
            Persistence::Persistent { .. } => {
                let read = self.assembly.read(&*store, |source| read(source, target.length));
                read.map_err(|error| refuse(self, &error))?
            }
        };
        let config = StoreConfig {
            name: format!("line {line} of {}", self.path),
            store,
            sectors: Sectors(target.length),
            layout: snapshot.chunk,
            persistence,
            features: Features {
                discard_zeroes_cow: snapshot.discard_zeroes_cow,
                discard_passdown_origin: snapshot.discard_passdown_origin,
            },
            found,
            unusable: false,
        };
        Ok((id, config))
    }
}

//! Thin pools and their volumes in tables: a `thin-pool` is opened where it stands, and the `thin` lines behind it share it.
//!
//! A pool's device is not served: what lies in it are the blocks of all its volumes, in no order.

use std::sync::Arc;

use blockwork_engine::{Layer, NodeKind, Sectors};
use blockwork_format::escape;
use blockwork_format::table::{self, Below, Device, Target, TargetKind, Thin, ThinPool};
use blockwork_layer::thin::{Discards, PoolFeatures};

use super::Builder;
use crate::assembly::Assembly;
use crate::error::VolumeError;
use crate::graph::DeviceId;
use crate::thin::{NEVER_USED, OpenPool, PoolChange, PoolCommit, PoolEditError, PoolEditor, ThinVolume};

/// What is said to whoever wants to have a pool's device.
pub(super) const NOT_SERVED: &str = "it is a thin pool, whose volumes can be served, and nothing else of it";

/// A pool of a file.
#[derive(Clone)]
pub(super) struct TablePool {
    opened: OpenPool,
    /// The devices of its data and its metadata.
    below: [DeviceId; 2],
}

fn features(pool: &ThinPool) -> PoolFeatures {
    let words = &pool.features;
    PoolFeatures {
        zero_new_blocks: !words.skip_block_zeroing,
        discards: match (words.ignore_discard, words.no_discard_passdown) {
            (true, _) => Discards::Ignore,
            (false, true) => Discards::NoPassdown,
            (false, false) => Discards::Passdown,
        },
        read_only: words.read_only,
        error_if_no_space: words.error_if_no_space,
        low_water: pool.low_water,
        ..PoolFeatures::default()
    }
}

/// What a pool lies on.
struct Parts {
    metadata: Arc<dyn Layer>,
    data: Arc<dyn Layer>,
    /// The devices of its data and its metadata.
    ids: [DeviceId; 2],
}

impl Assembly {
    /// What there is to write for a change of a pool of the table in the file `path`, which no other table uses. The devices that the
    /// pool lies on are assembled for that, and nothing that lies on it.
    ///
    /// # Errors
    ///
    /// The table has no such pool, or is wrong up to it; or the pool cannot be changed like that.
    pub fn change_table_pool(
        &mut self,
        path: &str,
        device: &str,
        change: PoolChange,
    ) -> Result<PoolCommit, VolumeError> {
        let parsed = super::read(path)?;
        let named =
            |one: &&Device| format!("dm/{}", one.name.clone().unwrap_or_else(|| super::stem(path))) == device;
        let targets = parsed.devices.iter().find(named).map(|one| &one.targets[..]);
        let Some([target @ Target { kind: TargetKind::ThinPool(pool), .. }]) = targets else {
            let what = format!(
                "{path} has no thin-pool of that name; what can be told something is one, as dm/NAME"
            );
            return Err(VolumeError::Refused { name: device.to_owned(), what });
        };
        let mut builder = Builder::new(self, path, &parsed);
        for before in parsed.devices.iter().take_while(|one| !named(one)) {
            // Pools and their volumes are no part of another pool here, and need not be there yet.
            if !before.targets.iter().any(is_thin) {
                builder.device(before)?;
            }
        }
        let line = target.line_number;
        let parts = builder.parts(device, target, pool)?;
        let sectors = Sectors(target.length);
        let refused = |error: PoolEditError| VolumeError::Target {
            path: path.to_owned(),
            line,
            what: format!("{}: {error}", escape(&pool.metadata)),
        };
        let mut editor =
            PoolEditor::open(self, device, parts.metadata, sectors, pool.block_sectors).map_err(refused)?;
        editor.change(self, change).map_err(refused)?;
        editor.plan(self).map_err(refused)
    }
}

fn is_thin(target: &Target) -> bool {
    matches!(target.kind, TargetKind::ThinPool(_) | TargetKind::Thin(_))
}

impl Builder<'_> {
    fn parts(&mut self, device: &str, target: &Target, pool: &ThinPool) -> Result<Parts, VolumeError> {
        let line = target.line_number;
        let (metadata_id, metadata) = self.whole(line, &pool.metadata)?;
        let (data_id, data) = self.whole(line, &pool.data.dev)?;
        if metadata_id == data_id {
            return Err(self.refuse(line, "its data and its metadata are the same device".into()));
        }
        let name = format!("{device} {}+{}", target.start, target.length);
        let data = self.cut(line, &name, data, Sectors(target.length))?;
        Ok(Parts { metadata, data, ids: [data_id, metadata_id] })
    }

    /// Opens the pool that a line describes; and why nothing of it can be written, which whoever has one of its volumes is told.
    pub(super) fn thin_pool(
        &mut self,
        device: &str,
        target: &Target,
        pool: &ThinPool,
    ) -> Result<(TablePool, Option<String>), VolumeError> {
        let line = target.line_number;
        let Parts { metadata, data, ids } = self.parts(device, target, pool)?;
        // Each would give out blocks that are the other's.
        for (id, dev) in ids.iter().zip([&pool.data.dev, &pool.metadata]) {
            if self.pools.values().any(|other| other.below.contains(id)) {
                return Err(self.refuse(line, format!("{} is part of another thin-pool", escape(dev))));
            }
        }
        let refuse =
            |this: &Self, why: String| this.refuse(line, format!("{}: {why}", escape(&pool.metadata)));
        let found = self.assembly.pool_metadata(&*metadata).map_err(|why| refuse(self, why))?;
        let found = found.ok_or_else(|| refuse(self, NEVER_USED.into()))?;
        let block = found.0.data_block_sectors;
        if block != pool.block_sectors {
            let what =
                format!("its superblock has blocks of {block} sectors, and the line {}", pool.block_sectors);
            return Err(refuse(self, what));
        }
        let features = features(pool);
        let opened = self.assembly.open_pool(device.to_owned(), metadata, data, found, features);
        let (opened, _) = opened.map_err(|why| self.refuse(line, why))?;
        let why = opened.why_read_only().filter(|_| !self.assembly.plan.read_only);
        let why = why.map(|why| match pool.features.read_only {
            true => format!("line {line} of {} has it so", escape(self.path)),
            false => format!("{}: {why}", escape(&pool.metadata)),
        });
        self.assembly.table_pools.insert(device.to_owned(), opened.clone());
        Ok((TablePool { opened, below: ids }, why))
    }

    /// The volume that a line describes.
    pub(super) fn thin(
        &mut self,
        device: &str,
        target: &Target,
        thin: &Thin,
    ) -> Result<Arc<dyn Layer>, VolumeError> {
        let line = target.line_number;
        let id = table::reference(&thin.pool).and_then(|name| self.devices.get(name)).copied();
        let Some((id, pool)) = id.and_then(|id| Some((id, self.pools.get(&id)?.clone()))) else {
            let what = format!("{}: expected a thin-pool that is defined above", escape(&thin.pool));
            return Err(self.refuse(line, what));
        };
        self.below.extend([id].into_iter().chain(pool.below));
        let external_origin = match &thin.external_origin {
            None => None,
            Some(dev) => Some(self.below(line, &Below { dev: dev.clone(), offset: 0 })?),
        };
        let name = format!("{device} {}+{}", target.start, target.length);
        let volume = ThinVolume {
            node: self.node(&name, NodeKind::Thin)?,
            device: thin.device_id.into(),
            sectors: Sectors(target.length),
            external_origin,
        };
        let found = self.assembly.thin(&pool.opened, volume).map_err(|why| self.refuse(line, why))?;
        let (layer, unread) = found.ok_or_else(|| {
            let id = thin.device_id;
            let what = format!(
                "{} knows no device {id}; the message `create_thin {id}` makes it: see `blockwork message --help`",
                escape(&thin.pool)
            );
            self.refuse(line, what)
        })?;
        match unread.first() {
            Some(error) => Err(self.refuse(line, format!("not all of it can be read: {error}"))),
            None => Ok(layer),
        }
    }

    /// A device that a line names, and its layer.
    fn whole(&mut self, line: u64, dev: &str) -> Result<(DeviceId, Arc<dyn Layer>), VolumeError> {
        let id = self.device_below(line, dev)?;
        self.below.push(id);
        let layer = self.assembly.layer(id);
        Ok((id, layer.map_err(|why| self.refuse(line, format!("{}: {why}", escape(dev))))?))
    }
}

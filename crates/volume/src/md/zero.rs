//! Superblocks are taken away from devices, which are members of no array then, as `mdadm --zero-superblock` does it.
//!
//! A device may have several: one that counts, and older ones of arrays of other versions, which would count without that one. All go.
//!
//! Invariants: (1) nothing is written before everything has been checked, and all disks are locked from then on; (2) the one that counts goes
//! last, and behind those that it hides: a power cut leaves a member of that array, or of none; (3) nothing but superblocks is overwritten.

use std::sync::Arc;

use blockwork_engine::Layer;
use blockwork_format::md::{Place, Superblock, places};
use blockwork_format::{Piece, SECTOR_BYTES, Source, escape};

use super::create::{Writing, device, different, disk_of};
use crate::assembly::Assembly;
use crate::error::VolumeError;
use crate::graph::{Content, DeviceId};
use crate::newcomer::refused;
use crate::plan::Plan;
use crate::steps::{Step, Target, Write};

/// Superblocks that can be taken away: their disks are open and locked.
pub struct Zeroing {
    assembly: Assembly,
    devices: Vec<Zeroed>,
}

/// A device, and what it loses.
pub struct Zeroed {
    /// As it was given.
    pub name: String,
    /// Its superblocks, in the order in which they go.
    pub superblocks: Vec<Superblock>,
    /// What starts like one, and is not to be believed: how many.
    pub damaged: usize,
    pieces: Vec<Piece>,
    layer: Arc<dyn Layer>,
}

impl Zeroing {
    /// Opens disks (as [`Plan`] takes them, `PATH/NUMBER` for a partition), and looks for superblocks.
    ///
    /// # Errors
    ///
    /// A disk that cannot be had, or not be read where a superblock may be; and unless it is forced, one that has a damaged superblock, or a
    /// partition table before one.
    pub fn prepare(disks: &[String], force: bool) -> Result<Zeroing, VolumeError> {
        different(disks)?;
        let open = disks.iter().map(|spec| disk_of(spec).to_owned()).collect();
        let mut assembly = Assembly::open(Plan { disks: open, ..Plan::default() })?;
        let mut devices = Vec::with_capacity(disks.len());
        for spec in disks {
            let id = device(&assembly, spec)?;
            devices.push(look(&mut assembly, id, spec, force)?);
        }
        Ok(Zeroing { assembly, devices })
    }

    /// Who has the disks open.
    pub fn assembly(&self) -> &Assembly {
        &self.assembly
    }

    /// The devices, in the order in which they were given.
    pub fn devices(&self) -> &[Zeroed] {
        &self.devices
    }

    /// What is left to do.
    pub fn writing(&self) -> Writing {
        let most = self.devices.iter().map(|it| it.pieces.len()).max().unwrap_or(0);
        // Of one device one after the other; what becomes of another one is its own affair.
        let step = |nth: usize| {
            let of = |(device, it): (usize, &Zeroed)| {
                it.pieces.get(nth).map(|piece| Write { device, piece: piece.clone() })
            };
            Step {
                what: "zeros over the superblock",
                writes: self.devices.iter().enumerate().filter_map(of).collect(),
            }
        };
        let target = |it: &Zeroed| Target { name: it.name.clone(), layer: it.layer.clone() };
        Writing::new((0..most).map(step).collect(), self.devices.iter().map(target).collect())
    }
}

fn look(assembly: &mut Assembly, id: DeviceId, spec: &str, force: bool) -> Result<Zeroed, VolumeError> {
    let layer = assembly.layer(id).map_err(|what| refused(spec, what))?;
    let found = assembly.read(&*layer, |source| superblocks(source)).map_err(|what| refused(spec, what))?;
    let damaged = found.iter().filter(|(_, superblock)| superblock.is_none()).count();
    if damaged > 0 && !force {
        let what = "it has a damaged superblock; --force takes that away as well".to_owned();
        return Err(refused(spec, what));
    }
    if let Content::Partitions(table) = &assembly.graph.device(id).content
        && !found.is_empty()
        && !force
    {
        let numbers: Vec<_> = table.partitions.iter().map(|it| it.number.to_string()).collect();
        let what = format!(
            "it has partitions ({}), one of which the superblock may be of: name that ({}/NUMBER), or add --force to take away what is in the \
             disk's own places",
            numbers.join(", "),
            escape(spec)
        );
        return Err(refused(spec, what));
    }
    let zeros = |place: &Place| Piece { offset: place.sector * SECTOR_BYTES, bytes: vec![0; Place::BYTES] };
    Ok(Zeroed {
        name: spec.to_owned(),
        pieces: found.iter().map(|(place, _)| zeros(place)).collect(),
        superblocks: found.into_iter().filter_map(|(_, superblock)| superblock).collect(),
        damaged,
        layer,
    })
}

/// What there is that starts like a superblock, with that which counts last; none: a damaged one.
fn superblocks(source: &dyn Source) -> Result<Vec<(Place, Option<Superblock>)>, String> {
    let sectors = source.size() / SECTOR_BYTES;
    let mut found = Vec::new();
    for place in places(sectors) {
        let (offset, mut bytes) = (place.sector * SECTOR_BYTES, vec![0; Place::BYTES]);
        source.read_at(offset, &mut bytes).map_err(|error| {
            format!("a superblock may be at byte {offset}, which cannot be read: {error}")
        })?;
        found.extend(place.decode(&bytes, sectors).map(|decoded| (place, decoded.ok())));
    }
    // Of equally old ones that in the first place counts.
    found.reverse();
    found.sort_by_key(|(_, superblock)| superblock.as_ref().map(Superblock::ctime_seconds));
    Ok(found)
}

//! An array whose every sector tells what it should hold, on all of its copies.

use blockwork_engine::{Bio, FileId, Flags, Op, Sector, Sectors};
use blockwork_layer::md::Places;
use blockwork_sim::Random;

use crate::rig::{DATA_START, Make, Rig};

/// What sector `sector` holds after the `generation`-th write to it.
fn content(sector: u64, generation: u32) -> [u8; 512] {
    let mut bytes = [0; 512];
    if generation > 0 {
        for part in bytes.chunks_exact_mut(16) {
            part[..8].copy_from_slice(&sector.to_le_bytes());
            part[8..12].copy_from_slice(&generation.to_le_bytes());
        }
    }
    bytes
}

/// An array with what was written to each of its sectors.
pub struct Filled {
    pub rig: Rig,
    generations: Vec<u32>,
}

impl Filled {
    /// All of it is written once.
    pub fn new(rig: Rig) -> Filled {
        let mut filled = Filled::nothing(rig);
        let sectors = filled.sectors();
        for sector in (0..sectors).step_by(2048) {
            filled.write(sector, 2048.min(sectors - sector));
        }
        filled.rig.flush().unwrap();
        filled
    }

    /// Nothing was written yet.
    pub fn nothing(rig: Rig) -> Filled {
        let sectors = rig.make.geometry().sectors().0;
        Filled { rig, generations: vec![0; sectors as usize] }
    }

    pub fn of(make: Make) -> Filled {
        Filled::new(Rig::new(make))
    }

    pub fn sectors(&self) -> u64 {
        self.generations.len() as u64
    }

    /// A write of something new, to be submitted.
    pub fn next_write(&mut self, sector: u64, nr: u64) -> Bio {
        let mut bytes = Vec::new();
        for at in sector..sector + nr {
            let generation = &mut self.generations[at as usize];
            *generation += 1;
            bytes.extend(content(at, *generation));
        }
        Bio::with_data(Op::Write, Flags::NONE, Sector(sector), Rig::memory(&bytes))
    }

    pub fn write(&mut self, sector: u64, nr: u64) {
        let bio = self.next_write(sector, nr);
        self.rig.run(bio).0.unwrap();
    }

    /// Discards, so that it holds zeros.
    pub fn zero(&mut self, sector: u64, nr: u64) {
        let bio = Bio::without_data(Op::WriteZeroes, Flags::NONE, Sector(sector), Sectors(nr));
        self.rig.run(bio).0.unwrap();
        self.generations[sector as usize..(sector + nr) as usize].fill(0);
    }

    /// Writes and zeroes here and there, until the array has nothing to do for its copies.
    pub fn write_until_synced(&mut self, random: &mut Random) -> u64 {
        let mut writes = 0;
        while self.rig.is_syncing() {
            let nr = random.between(1, 64);
            let sector = random.below(self.sectors() - nr);
            if random.chance(1, 8) {
                self.zero(sector, nr);
            } else {
                self.write(sector, nr);
            }
            writes += 1;
        }
        writes
    }

    /// What the array gives is what was written.
    pub fn check_read(&mut self) {
        let sectors = self.sectors();
        for sector in (0..sectors).step_by(1024) {
            let nr = 1024.min(sectors - sector);
            let read = self.rig.read(sector, nr).unwrap();
            for (at, bytes) in (sector..).zip(read.chunks_exact(512)) {
                assert_eq!(bytes, content(at, self.generations[at as usize]), "sector {at}");
            }
        }
    }

    /// Every copy holds what was written.
    pub fn check_copies(&self) {
        let geometry = self.rig.make.geometry();
        let devices: Vec<u16> = (0..self.rig.make.members).map(|role| self.rig.device_of(role)).collect();
        let mut places = Places::new();
        for sector in 0..self.sectors() {
            geometry.places(Sector(sector), &mut places);
            for place in &places {
                let device = FileId(devices[usize::from(place.member)].into());
                let found = self.rig.world.peek(device, DATA_START + place.sector.0);
                let generation = self.generations[sector as usize];
                assert_eq!(
                    found,
                    content(sector, generation),
                    "sector {sector} on member {} at {}: {:?}",
                    place.member,
                    place.sector,
                    self.rig.make
                );
            }
        }
    }
}

//! Random stacks over random devices.

use std::sync::Arc;

use blockwork_engine::{FileId, Layer, LeafId, LeafLayer, LeafSource, NodeId, Sector, Sectors, Volume};
use blockwork_layer::{Linear, Segment, Stripe, Striped, Table};
use blockwork_sim::{DeviceModel, Lies, Random, World};

use crate::running::devices::draw_device;
use crate::running::{Nodes, Stack};

/// How the devices are put together.
#[derive(Clone, Debug)]
pub enum Shape {
    /// The device itself.
    Leaf,
    /// Two ranges of each device, one after the other, from back to front.
    Linear,
    /// Chunks of so many sectors.
    Striped { chunk: u64 },
    /// Two linear ranges of a striped one, swapped.
    LinearOverStriped { chunk: u64 },
    /// Two volumes on the halves of one device.
    Halves,
}

/// Devices, and how they are put together.
#[derive(Clone, Debug)]
pub struct Geometry {
    pub devices: Vec<DeviceModel>,
    pub shape: Shape,
}

impl Geometry {
    pub fn draw(random: &mut Random) -> Geometry {
        let chunk = *random.choose(&[8, 24, 40, 64, 128]);
        let (count, shape) = match random.below(6) {
            0 => (1, Shape::Leaf),
            1 => (2, Shape::Linear),
            2 => (random.index(3) + 2, Shape::Striped { chunk }),
            3 => (random.index(3) + 2, Shape::LinearOverStriped { chunk }),
            4 => (random.index(3) + 2, Shape::Striped { chunk: if chunk == 8 { 5 } else { chunk } }),
            _ => (1, Shape::Halves),
        };
        // A chunk of 5 sectors is possible with blocks of 512 bytes alone.
        let small = matches!(shape, Shape::Striped { chunk: 5 });
        let sectors = 960 * random.between(1, 2) / count as u64 / 120 * 120;
        let devices = (0..count).map(|_| draw_device(random, sectors.max(240), small)).collect();
        Geometry { devices, shape }
    }

    /// Builds the stack on the world's devices, which are these.
    pub fn build(&self, world: &World, lies: Lies) -> Stack {
        let sources: Vec<Arc<dyn LeafSource>> = (0..world.devices())
            .map(|n| Arc::new(world.lying_source(FileId(n), lies)) as Arc<dyn LeafSource>)
            .collect();
        let mut nodes = Nodes::default();
        let leaves: Vec<(NodeId, Arc<dyn LeafSource>)> =
            sources.iter().map(|source| (nodes.next(), source.clone())).collect();
        let bottoms: Vec<Arc<dyn Layer>> = (0..)
            .zip(&leaves)
            .map(|(n, (node, source))| {
                let layer = LeafLayer::new(LeafId(n), *node, source.sectors(), source.limits().clone());
                Arc::new(layer) as Arc<dyn Layer>
            })
            .collect();
        let roots: Vec<Arc<dyn Layer>> = match self.shape {
            Shape::Leaf => vec![bottoms[0].clone()],
            Shape::Linear => vec![swapped(&mut nodes, &bottoms)],
            Shape::Striped { chunk } => vec![striped(&mut nodes, &bottoms, chunk)],
            Shape::LinearOverStriped { chunk } => {
                let below = striped(&mut nodes, &bottoms, chunk);
                vec![swapped(&mut nodes, &[below])]
            }
            Shape::Halves => {
                let half = bottoms[0].sectors().0 / 2 / 8 * 8;
                [half, 0].map(|start| linear(&mut nodes, &bottoms[0], start, half)).to_vec()
            }
        };
        let volumes = roots
            .into_iter()
            .enumerate()
            .map(|(n, root)| Volume::new(format!("v{n}"), root, false))
            .collect();
        Stack { volumes, leaves: leaves.into(), nodes: usize::from(nodes.0) }
    }
}

fn linear(nodes: &mut Nodes, below: &Arc<dyn Layer>, start: u64, sectors: u64) -> Arc<dyn Layer> {
    let target = Linear::new(nodes.next(), below.clone(), Sector(start), Sectors(sectors));
    Arc::new(target.expect("it lies within the layer below"))
}

/// The second part of each layer, then the first part of each.
fn swapped(nodes: &mut Nodes, below: &[Arc<dyn Layer>]) -> Arc<dyn Layer> {
    let mut segments = Vec::new();
    let mut at = 0;
    for second in [true, false] {
        for layer in below {
            let (size, cut) = (layer.sectors().0, layer.sectors().0 / 3 / 8 * 8);
            let (start, sectors) = if second { (cut, (size - cut) / 8 * 8) } else { (0, cut) };
            segments.push(Segment { start: Sector(at), target: linear(nodes, layer, start, sectors) });
            at += sectors;
        }
    }
    Arc::new(Table::new(nodes.next(), segments).expect("without gaps"))
}

fn striped(nodes: &mut Nodes, below: &[Arc<dyn Layer>], chunk: u64) -> Arc<dyn Layer> {
    // The stripes start at odd places, but at blocks.
    let start = |n: usize| n as u64 % 2 * 8;
    let least = below.iter().map(|layer| layer.sectors().0).min().expect("at least one stripe");
    let each = (least - 8) / chunk * chunk;
    let stripes = below.iter().enumerate();
    let stripes =
        stripes.map(|(n, layer)| Stripe { below: layer.clone(), start: Sector(start(n)) }).collect();
    let sectors = Sectors(each * below.len() as u64);
    Arc::new(Striped::new(nodes.next(), Sectors(chunk), stripes, sectors).expect("even stripes"))
}

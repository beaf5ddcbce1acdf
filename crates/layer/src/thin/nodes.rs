//! The nodes of a pool's trees, as the slow path reads them: from the metadata device; internal ones are kept, since every way down
//! begins with them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use blockwork_engine::{Errno, Layer, Sector, Sectors, TaskContext};
use blockwork_format::FormatError;
use blockwork_format::thin::tree::Place;
use blockwork_format::thin::{BLOCK_BYTES, BLOCK_SECTORS, BlockTime, Node};

use crate::md::io;

/// Internal nodes that are kept: 4 KiB each.
const NODES_MAX: usize = 2048;

/// Nodes about which something was said: not again, or a client could fill the log.
const TOLD_MAX: usize = 64;

/// Why a node is not there.
#[derive(Debug, thiserror::Error)]
pub(super) enum NodeError {
    #[error("metadata block {nr} cannot be read: {errno}")]
    Read { nr: u64, errno: Errno },
    #[error(transparent)]
    Format(#[from] FormatError),
}

/// Reads and keeps nodes.
#[derive(Debug)]
pub(super) struct Nodes {
    metadata: Arc<dyn Layer>,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    nodes: BTreeMap<u64, Arc<Node<BlockTime>>>,
    /// Their blocks, the oldest first.
    order: VecDeque<u64>,
    told: BTreeSet<u64>,
}

impl Nodes {
    pub fn new(metadata: Arc<dyn Layer>) -> Nodes {
        Nodes { metadata, kept: Mutex::default() }
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        // Nothing panics while it is held.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether nothing was said about a node yet; from now on something was.
    pub fn tell(&self, nr: u64) -> bool {
        let mut kept = self.kept();
        kept.told.len() < TOLD_MAX && kept.told.insert(nr)
    }

    /// The node at a place; whether it may be there is not checked.
    pub async fn node(&self, cx: &TaskContext, place: Place) -> Result<Arc<Node<BlockTime>>, NodeError> {
        if let Some(node) = self.kept().nodes.get(&place.nr) {
            return Ok(node.clone());
        }
        let sector = Sector(place.nr * BLOCK_SECTORS);
        let read = io::read(cx, &self.metadata, sector, Sectors(BLOCK_SECTORS)).await;
        let data = read.map_err(|errno| NodeError::Read { nr: place.nr, errno })?;
        let mut block = Box::new([0; BLOCK_BYTES]);
        data.read_at(0, &mut block[..]);
        let node = Arc::new(Node::decode(place.nr, &block)?);
        if matches!(*node, Node::Internal(_)) {
            self.keep(place.nr, node.clone());
        }
        Ok(node)
    }

    fn keep(&self, nr: u64, node: Arc<Node<BlockTime>>) {
        let mut kept = self.kept();
        if kept.nodes.insert(nr, node).is_none() {
            kept.order.push_back(nr);
        }
        if kept.order.len() > NODES_MAX
            && let Some(oldest) = kept.order.pop_front()
        {
            kept.nodes.remove(&oldest);
        }
    }
}

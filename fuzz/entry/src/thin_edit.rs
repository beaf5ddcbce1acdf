//! Changes to the metadata of thin pools that may be damaged.

use std::collections::BTreeMap;
use std::sync::Arc;

use blockwork_format::Sparse;
use blockwork_format::thin::edit::{Commit, EditError, Editor};
use blockwork_format::thin::{BLOCK_BYTES, Block, Superblock, read_block};

use crate::input::Input;
use crate::thin_metadata::{BLOCKS, device};
use crate::{assert_printable, reached};

/// Bytes of an operation: which u8, device u8, first block u16, blocks u16.
pub(crate) const OPERATION_BYTES: usize = 6;

/// In this order operations have numbers in an input.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Operation {
    Map,
    Unmap,
    Create,
    Snapshot,
    Delete,
    Hold,
    Release,
    GrowData,
    LookUp,
    Commit,
}

const OPERATIONS: [Operation; 10] = [
    Operation::Map,
    Operation::Unmap,
    Operation::Create,
    Operation::Snapshot,
    Operation::Delete,
    Operation::Hold,
    Operation::Release,
    Operation::GrowData,
    Operation::LookUp,
    Operation::Commit,
];

/// A metadata device of 64 blocks, and what is done to it. The input: how many operations u8, these, then as for `thin_metadata`.
pub fn thin_edit(data: &[u8]) {
    let mut input = Input(data);
    let count = usize::from(input.u8() % 64);
    let operations = input.bytes(count * OPERATION_BYTES);
    let device = device(&mut input);
    let block = read_block(&device, 0).expect("it is in memory");
    let Ok(Some(superblock)) = Superblock::decode(&block) else { return reached("no pool") };
    match Editor::new(superblock, BLOCKS.into()) {
        Ok(editor) => Pool { device, read: BTreeMap::new(), editor }.run(operations),
        Err(error) => refused(&error),
    }
}

struct Pool {
    device: Sparse,
    read: BTreeMap<u64, Arc<Block>>,
    editor: Editor,
}

impl Pool {
    fn run(&mut self, operations: &[u8]) {
        for bytes in operations.chunks(OPERATION_BYTES) {
            let mut input = Input(bytes);
            let operation = OPERATIONS[usize::from(input.u8()) % OPERATIONS.len()];
            let (device, first, blocks) = (input.u8(), input.u16(), input.u16());
            let dirty = self.editor.dirty_blocks();
            let done = self.operation(operation, device.into(), first.into(), blocks.into());
            match done {
                Ok(what) => reached(what),
                Err(error) => {
                    refused(&error);
                    assert_eq!(
                        self.editor.dirty_blocks(),
                        dirty,
                        "{operation:?} changed something, and failed"
                    );
                }
            }
        }
        match self.commit() {
            Ok(()) => reached("committed at the end"),
            Err(error) => refused(&error),
        }
    }

    fn operation(
        &mut self,
        operation: Operation,
        device: u64,
        first: u64,
        blocks: u64,
    ) -> Result<&'static str, EditError> {
        match operation {
            Operation::Map => {
                let data = self.ask(|editor, read| editor.allocate(read, blocks))?;
                let mapped = self.ask(|editor, read| editor.map(read, device, first, data.clone()));
                self.editor.release(data);
                mapped.map(|_| "mapped")
            }
            Operation::Unmap => {
                self.ask(|editor, read| editor.unmap(read, device, first..first + blocks)).map(|_| "unmapped")
            }
            Operation::Create => {
                self.ask(|editor, read| editor.create_device(read, device)).map(|()| "created")
            }
            Operation::Snapshot => {
                self.ask(|editor, read| editor.create_snapshot(read, device, first)).map(|()| "snapshot")
            }
            Operation::Delete => {
                self.ask(|editor, read| editor.delete_device(read, device)).map(|_| "deleted")
            }
            Operation::Hold => self.ask(|editor, read| editor.reserve_metadata_snap(read)).map(|()| "held"),
            Operation::Release => {
                self.ask(|editor, read| editor.release_metadata_snap(read)).map(|_| "released")
            }
            Operation::GrowData => {
                let wanted = self.editor.data_blocks().saturating_add(blocks);
                self.ask(|editor, read| editor.grow_data(read, wanted)).map(|()| "grown")
            }
            Operation::LookUp => {
                self.ask(|editor, read| editor.look_up(read, device, first, blocks)).map(|_| "looked up")
            }
            Operation::Commit => self.commit().map(|()| "committed"),
        }
    }

    /// Reads what an operation asks for, which is never twice the same.
    fn ask<T>(
        &mut self,
        mut operation: impl FnMut(&mut Editor, &BTreeMap<u64, Arc<Block>>) -> Result<T, EditError>,
    ) -> Result<T, EditError> {
        loop {
            match operation(&mut self.editor, &self.read) {
                Err(EditError::Missing(nr)) => {
                    let block = read_block(&self.device, nr).expect("a block of the device");
                    assert!(self.read.insert(nr, block.into()).is_none(), "block {nr} is there");
                }
                result => return result,
            }
        }
    }

    fn commit(&mut self) -> Result<(), EditError> {
        let Commit { writes, superblock } = self.ask(|editor, read| editor.commit(read))?;
        assert!(writes.windows(2).all(|pair| pair[0].0 < pair[1].0), "each block once, in order");
        for (nr, block) in writes.into_iter().chain([(0, superblock)]) {
            self.device.write(nr * BLOCK_BYTES as u64, block.to_vec());
            self.read.insert(nr, block);
        }
        self.editor.committed();
        assert!(!self.editor.is_dirty());
        Ok(())
    }
}

fn refused(error: &EditError) {
    reached("refused");
    assert_printable(&error.to_string());
}

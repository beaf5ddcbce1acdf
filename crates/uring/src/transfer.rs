//! The entries of reads and writes: of one piece of memory that the kernel knows, of one, of several.

use blockwork_engine::FileOp;
use io_uring::{opcode, squeue, types};

use crate::ring::length;
use crate::slots::Slot;

/// Of a read of `op.data`, which the slot holds; `known` is the kernel's index of its only piece.
#[inline]
pub(crate) fn read(slot: &Slot, file: types::Fd, op: &FileOp<'_>, known: Option<u16>) -> squeue::Entry {
    match (op.data, known) {
        ([only], Some(index)) => {
            opcode::ReadFixed::new(file, only.as_ptr(), length(only.len()), index).offset(op.offset).build()
        }
        ([only], None) => {
            opcode::Read::new(file, only.as_ptr(), length(only.len())).offset(op.offset).build()
        }
        _ => opcode::Readv::new(file, slot.iovecs.as_ptr(), length(slot.iovecs.len()))
            .offset(op.offset)
            .build(),
    }
}

/// Likewise of a write; `flags` are those of pwritev2(2).
#[inline]
pub(crate) fn write(
    slot: &Slot,
    file: types::Fd,
    op: &FileOp<'_>,
    known: Option<u16>,
    flags: i32,
) -> squeue::Entry {
    match (op.data, known) {
        ([only], Some(index)) => {
            opcode::WriteFixed::new(file, only.as_ptr().cast_const(), length(only.len()), index)
                .offset(op.offset)
                .rw_flags(flags)
                .build()
        }
        ([only], None) => opcode::Write::new(file, only.as_ptr().cast_const(), length(only.len()))
            .offset(op.offset)
            .rw_flags(flags)
            .build(),
        _ => opcode::Writev::new(file, slot.iovecs.as_ptr(), length(slot.iovecs.len()))
            .offset(op.offset)
            .rw_flags(flags)
            .build(),
    }
}

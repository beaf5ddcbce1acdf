//! Exports: how clients reach a volume. Each is a [`Port`](blockwork_engine::Port) of a worker.
//!
//! An export knows its protocol and nothing of disks: it turns a client's requests into bios on a volume, and their
//! completions into replies. It works in batches: one receive may bring many requests, all of which are submitted
//! before anything is waited for, and all replies of a turn leave together.
//!
//! Clients of NBD, guests of Xen and of vhost-user are hostile (bounded memory, bounded time, a broken one costs only itself); the kernel's
//! FUSE is trusted.
#![forbid(unsafe_code)]

pub mod blkif;
mod complaints;
pub mod fuse;
mod looks;
pub mod nbd;
pub mod offered;
pub mod vhost;
pub mod xen;

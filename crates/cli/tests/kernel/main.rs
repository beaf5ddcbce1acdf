//! The command and the real Linux kernel, taking turns with the same disks, files and rings: what every format, verb and door has
//! to stand. The kernel runs in a guest (`tests/kernel`), which takes a processor of its own for most of a minute.
//!
//! One program, whose tests hand their guests on to each other, so that as many run at once as the machine has processors, to the
//! end: `cargo test -p blockwork --test kernel -- vhost` picks a module.

mod chance;
mod crashes;
mod failures;
mod files;
mod lvm_caches;
mod lvm_grows;
mod lvm_legs;
mod lvm_mirror;
mod lvm_parity;
mod lvm_reads;
mod lvm_split;
mod lvm_verbs;
mod lvm_writes;
mod machine;
mod md_create;
mod md_kills;
mod md_reads;
mod md_sync;
mod md_writes;
mod nfs;
mod parity;
mod parity_writes;
mod raid_tables;
mod snapshot;
#[expect(dead_code, reason = "`command` uses all of it")]
#[path = "../support/mod.rs"]
mod support;
#[path = "../support/task.rs"]
mod task;
mod thin;
mod thin_verbs;
mod vhost;

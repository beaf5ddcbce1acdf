//! The command as its users have it: the real `blockwork` as a process, with real clients and disks, but no kernel but the one that
//! is here (what needs a guest is in `../kernel`).
//!
//! One program, so that what the tests share is built once, and no processor waits for the last test of a file: `cargo test -p
//! blockwork --test command -- serve_nbd` picks a module.

mod crash;
mod demo;
mod habits;
mod hostile;
mod installation;
mod lv_thin;
mod lvm_snapshot_verbs;
mod lvm_verbs;
mod md_create;
mod md_examine;
mod md_lab;
mod md_leaving;
mod md_verbs;
mod md_zero;
mod output;
mod reproduce;
mod scan;
mod scan_stacks;
mod serve_blocks;
mod serve_descriptors;
mod serve_fork;
mod serve_fuse;
mod serve_group_failures;
mod serve_group_growing_raids;
mod serve_group_legs;
mod serve_group_merges;
mod serve_group_partitions;
mod serve_group_snapshots;
mod serve_group_sync;
mod serve_groups;
mod serve_io;
mod serve_limits;
mod serve_loops;
mod serve_md;
mod serve_migratable;
mod serve_nbd;
mod serve_nfs;
mod serve_nfs_failures;
mod serve_sandbox;
mod serve_signals;
mod serve_snapshot;
mod serve_table;
mod serve_thin;
mod serve_thin_merges;
mod serve_thin_scenarios;
mod serve_vhost;
mod serve_xen;
#[path = "../support/mod.rs"]
mod support;
#[path = "../support/task.rs"]
mod task;
mod trace;
mod usage;

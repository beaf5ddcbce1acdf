//! A guest without a virtual machine, by the front end of `bench/vhostload`.

use std::collections::HashMap;

use blockwork_format::virtio::blk::{request, status};
use vhostload::{Disk, Request};

use super::until;

/// What it writes at a time, bytes.
pub const BLOCK: usize = 4096;

/// A guest that writes blocks all over its disk, and knows what it was told.
pub struct Guest {
    pub disk: Disk,
    blocks: u64,
    /// By queue and number of the request: what it writes where.
    pub in_flight: HashMap<(usize, u16), (u64, u64)>,
    /// What each block holds, where that is known.
    written: HashMap<u64, u64>,
    next: u64,
    finished: u64,
}

impl Guest {
    pub fn new(disk: Disk, blocks: u64) -> Guest {
        Guest { disk, blocks, in_flight: HashMap::new(), written: HashMap::new(), next: 1, finished: 0 }
    }

    /// Tops up all queues, with blocks that nothing is in flight to.
    pub fn fill(&mut self) {
        for queue in 0..self.disk.queues.len() {
            while let Some(id) = self.disk.queues[queue].next_id() {
                let block = self.next.wrapping_mul(0x9e37_79b9_7f4a_7c15) % self.blocks;
                if self.in_flight.values().any(|&(busy, _)| busy == block) {
                    self.next += 1;
                    continue;
                }
                self.disk.write_data(queue, id, &self.next.to_le_bytes().repeat(BLOCK / 8));
                let request = Request { kind: request::OUT, sector: block * 8, len: BLOCK };
                if self.disk.start(queue, request).is_none() {
                    break; // the ring is full
                }
                self.in_flight.insert((queue, id), (block, self.next));
                self.next += 1;
            }
        }
    }

    /// Notes what is done.
    pub fn take(&mut self) -> u64 {
        let before = self.finished;
        for queue in 0..self.disk.queues.len() {
            while let Some(done) = self.disk.finished(queue) {
                assert_eq!(done.status, status::OK);
                let (block, number) = self.in_flight.remove(&(queue, done.id)).expect("answered once");
                self.written.insert(block, number);
                self.finished += 1;
            }
        }
        self.finished - before
    }

    pub fn run(&mut self, requests: u64) {
        let end = self.finished + requests;
        until("requests are answered", || {
            self.fill();
            self.take();
            self.finished >= end
        });
    }

    /// Ends what is in flight, and reads everything back.
    pub fn verify(&mut self) {
        until("the rest is answered", || {
            self.take();
            self.in_flight.is_empty()
        });
        for (&block, &number) in &self.written {
            let read = Request { kind: request::IN, sector: block * 8, len: BLOCK };
            let done = self.disk.run(0, read).unwrap();
            let mut data = vec![0; BLOCK];
            self.disk.read_data(0, done.id, &mut data);
            assert!(
                data == number.to_le_bytes().repeat(BLOCK / 8),
                "block {block} does not hold write {number}"
            );
        }
    }
}

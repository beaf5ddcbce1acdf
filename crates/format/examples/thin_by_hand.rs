//! by hand
use blockwork_format::thin::edit::*;
use blockwork_format::thin::*;
use std::collections::BTreeMap;
use std::sync::Arc;
struct P {
    dev: Vec<u8>,
    read: BTreeMap<u64, Arc<Block>>,
    e: Editor,
}
fn blk(d: &[u8], nr: u64) -> &Block {
    let a = nr as usize * 4096;
    d[a..a + 4096].try_into().unwrap()
}
impl P {
    fn op<T>(
        &mut self,
        mut f: impl FnMut(&mut Editor, &BTreeMap<u64, Arc<Block>>) -> Result<T, EditError>,
    ) -> T {
        loop {
            match f(&mut self.e, &self.read) {
                Err(EditError::Missing(nr)) => {
                    self.read.insert(nr, Arc::new(*blk(&self.dev, nr)));
                }
                r => return r.unwrap(),
            }
        }
    }
    fn commit(&mut self) {
        let c = self.op(|e, r| e.commit(r));
        for (nr, b) in &c.writes {
            let a = *nr as usize * 4096;
            self.dev[a..a + 4096].copy_from_slice(&b[..]);
            self.read.insert(*nr, b.clone());
        }
        self.dev[..4096].copy_from_slice(&c.superblock[..]);
        self.e.committed();
    }
    fn map(&mut self, dev: u64, mut first: u64, mut n: u64) {
        while n > 0 {
            let d = self.op(|e, r| e.allocate(r, n));
            self.op(|e, r| e.map(r, dev, first, d.clone()));
            println!("{dev} {first} {} {}", d.start, d.end - d.start);
            first += d.end - d.start;
            n -= d.end - d.start;
        }
    }
}
fn main() {
    let path = std::env::args().nth(1).unwrap();
    let dev = std::fs::read(&path).unwrap();
    let sb = Superblock::decode(blk(&dev, 0)).unwrap().unwrap();
    let mut p = P { e: Editor::new(sb, dev.len() as u64 / 4096).unwrap(), dev, read: BTreeMap::new() };
    p.op(|e, r| e.create_device(r, 20));
    p.map(20, 0, 100);
    p.commit();
    p.op(|e, r| e.create_snapshot(r, 21, 5));
    p.map(20, 150, 77);
    p.commit();
    p.op(|e, r| e.unmap(r, 21, 0..100));
    p.map(21, 50, 10);
    p.op(|e, r| e.reserve_metadata_snap(r));
    p.commit();
    p.map(20, 90, 20);
    p.op(|e, r| e.create_snapshot(r, 22, 20));
    p.op(|e, r| e.create_snapshot(r, 23, 22));
    p.commit();
    p.map(22, 5, 1);
    p.commit();
    for (id, d) in p.op(|e, r| e.devices(r)) {
        eprintln!("{id} {d:?}");
    }
    eprintln!("free data {} meta {}", p.e.free_data(), p.e.free_metadata());
    std::fs::write(&path, &p.dev).unwrap();
}

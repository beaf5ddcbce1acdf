//! Thin pools in tables: their metadata, as `thin_restore` makes it, and clients that scribble on two volumes at once.

use super::nbd::python;
use super::{Scratch, run, tool};

/// Metadata, as a file of that name, of a pool of so many blocks of `block` sectors with the volumes 1 and 2, both empty.
pub fn restore(scratch: &Scratch, name: &str, block: u64, blocks: u64) {
    let device = |id: u64| {
        format!(
            "<device dev_id=\"{id}\" mapped_blocks=\"0\" transaction=\"0\" creation_time=\"0\" snap_time=\"0\"></device>"
        )
    };
    let text = format!(
        "<superblock uuid=\"\" time=\"0\" transaction=\"0\" version=\"2\" data_block_size=\"{block}\" nr_data_blocks=\"{blocks}\">{}{}</superblock>",
        device(1),
        device(2)
    );
    let xml = scratch.write("pool.xml", text);
    let metadata = scratch.sparse(name, 4 << 20);
    run(tool("thin_restore").args(["-i", &xml, "-o", &metadata]));
}

/// Blocks that a volume maps, by what `thin_dump` says.
pub fn mapped(dump: &str, device: u32) -> u64 {
    let at = format!("dev_id=\"{device}\" mapped_blocks=\"");
    let rest = dump.split(&at).nth(1).unwrap_or_else(|| panic!("{dump}: no device {device}"));
    rest.split('"').next().unwrap().parse().unwrap()
}

/// Changes two exports at random and at the same time; then each holds what was written to it.
const SCRIBBLE: &str = "
import random
names, rng = ['dm/a', 'dm/b'], random.Random(SEED)
handles = [connect(URI.replace('EXPORT', name)) for name in names]
size = handles[0].get_size()
models = [bytearray(h.pread(size, 0)) for h in handles]
for n in range(200):
    which = rng.randrange(2)
    h, model = handles[which], models[which]
    length = rng.choice([512, 4096, 4608, 65536, 196608, 1 << 20])
    offset = rng.randrange(0, size - length + 1) // 512 * 512
    what = rng.choice(['write', 'write', 'write', 'fua', 'zero', 'discard', 'flush'])
    data = rng.randbytes(512) * (length // 512)
    if what == 'write' or what == 'fua':
        h.pwrite(data, offset, nbd.CMD_FLAG_FUA if what == 'fua' else 0)
    elif what == 'zero':
        h.zero(length, offset)
        data = bytes(length)
    elif what == 'discard':
        h.trim(length, offset)
        data = bytes(h.pread(length, offset))
    else:
        h.flush()
        continue
    model[offset:offset + length] = data
for h, model, name in zip(handles, models, names):
    h.flush()
    open('PLACE/' + name[3:] + '.bin', 'wb').write(model)
    print(name, 'as written' if h.pread(size, 0) == model else 'differs')
";

/// Changes the exports dm/a and dm/b at random; they hold what was written, which is kept in `a.bin` and `b.bin`.
pub fn scribble(scratch: &Scratch, seed: u64) {
    let script = SCRIBBLE
        .replace("SEED", &seed.to_string())
        .replace("PLACE", &scratch.at(""))
        .replace("URI", &format!("{:?}", scratch.uri("EXPORT")));
    assert_eq!(python(&script), "dm/a as written\ndm/b as written\n");
}

/// They still do.
pub fn expect_scribbled(scratch: &Scratch) {
    for name in ["a", "b"] {
        run(tool("nbdcopy").args([&scratch.uri(&format!("dm/{name}")), &scratch.at("copied")]));
        assert!(scratch.read("copied") == scratch.read(&format!("{name}.bin")), "{name}");
    }
}

//! Tables of the `raid` target with a parity, without metadata devices: the same text given to `dmsetup` and to `serve --table`, in turns, of all
//! layouts, whole and without the devices that their parity makes up for.

use std::fmt::Write;

use blockwork_format::dm_raid::ParityType;

use crate::machine::{Facts, MIB, Machine, expect_pattern, scribble};
use crate::support::{Server, until};

const DISKS: [&str; 5] = ["a", "b", "c", "d", "e"];

/// Sectors of each disk that an array has.
const SLICE: u64 = 4096;

/// An array on slices of the disks.
struct Array {
    name: &'static str,
    chunk: u64,
    devices: u64,
    parities: u64,
    /// Which one of all it is: where its slices are.
    nth: u64,
}

fn arrays() -> Vec<Array> {
    let kinds = ParityType::ALL.into_iter().filter_map(|kind| ParityType::of_target(kind.name()));
    let array = |(nth, kind): (u64, ParityType)| Array {
        name: kind.name(),
        chunk: [8, 32, 128][(nth % 3) as usize],
        devices: if kind.parities() == 2 { 4 + nth % 2 } else { 3 + nth % 3 },
        parities: kind.parities().into(),
        nth,
    };
    (0..).zip(kinds).map(array).collect()
}

impl Array {
    fn sectors(&self) -> u64 {
        SLICE * (self.devices - self.parities)
    }

    /// The slice of a disk that it has as a device.
    fn slice(&self, device: u64) -> String {
        format!("{}.{device}", self.name)
    }

    /// The target, where `at` is before the names of slices, and these devices are missing.
    fn target(&self, at: &str, missing: &[u64], parameters: &str) -> String {
        let count = parameters.split_whitespace().count() + 1;
        let mut line = format!("0 {} raid {} {count} {}", self.sectors(), self.name, self.chunk);
        let parameters = parameters.split_whitespace();
        parameters.for_each(|word| write!(line, " {word}").expect("text"));
        write!(line, " {}", self.devices).expect("text");
        for device in 0..self.devices {
            match missing.contains(&device) {
                true => line.push_str(" - -"),
                false => write!(line, " - {at}{}", self.slice(device)).expect("text"),
            }
        }
        line
    }

    /// As many devices as it can do without.
    fn missing(&self) -> &'static [u64] {
        if self.parities == 2 { &[0, 2] } else { &[1] }
    }
}

/// The arrays as `serve --table` reads them, over the disks in the machine's folder.
fn table(machine: &Machine, missing: impl Fn(&Array) -> &'static [u64], rebuilt: bool) -> String {
    let mut text = String::new();
    for array in arrays() {
        for (device, disk) in (0..array.devices).zip(DISKS) {
            let (slice, start) = (array.slice(device), array.nth * SLICE);
            writeln!(text, "{slice}: 0 {SLICE} linear {} {start}", machine.scratch.at(disk)).expect("text");
        }
        let of_device = |device: &u64| format!("rebuild {device} ");
        let parameters: String =
            if rebuilt { array.missing().iter().map(of_device).collect() } else { String::new() };
        let target = array.target("dm/", missing(&array), &parameters);
        writeln!(text, "{}: {target}", array.name).expect("text");
    }
    machine.note("table", &text);
    machine.scratch.write("t.table", text)
}

/// The slices, and then what is done with each array while the kernel has it.
fn script(missing: impl Fn(&Array) -> &'static [u64], each: impl Fn(&Array) -> String) -> String {
    let mut script = String::from("modprobe dm-raid\n");
    for array in arrays() {
        for (device, disk) in (0..array.devices).zip(DISKS) {
            let (slice, start) = (array.slice(device), array.nth * SLICE);
            writeln!(script, "dmsetup create {slice} --table \"0 {SLICE} linear /d/{disk} {start}\" >&2")
                .expect("text");
        }
        let target = array.target("/dev/mapper/", missing(&array), "");
        let name = array.name;
        writeln!(script, "dmsetup create {name} --table \"{target}\" >&2\n{}", each(&array)).expect("text");
        writeln!(script, "dmsetup remove --retry {name} >&2").expect("text");
    }
    script
}

/// Serves a table, does something with each array, and ends.
fn served<T>(machine: &Machine, table: &str, mut each: impl FnMut(&Array, &str) -> T) -> Vec<T> {
    let server = serve(machine, table);
    let done = arrays().iter().map(|array| each(array, &format!("dm/{}", array.name))).collect();
    stop(machine, server);
    done
}

/// Its arrays, and what it tells of them.
fn serve(machine: &Machine, table: &str) -> Server {
    let names: Vec<String> = arrays().iter().map(|array| format!("dm/{}", array.name)).collect();
    let args = ["serve", "--nbd", "unix:socket", "--table", table]
        .into_iter()
        .chain(names.iter().map(String::as_str));
    Server::start(machine.scratch.blockwork(args).env("RUST_LOG", "blockwork_layer=info"))
}

fn stop(machine: &Machine, server: Server) {
    let ended = server.stop();
    machine.note("serve said", &ended.stderr);
    assert!(ended.status.success(), "{}", ended.status);
}

fn nobody(_: &Array) -> &'static [u64] {
    &[]
}

#[test]
fn arrays_of_tables_are_written_by_the_kernel_and_by_us_in_turns_with_and_without_devices() {
    let mut machine = Machine::new();
    DISKS.iter().for_each(|disk| machine.disk(disk, 40 * MIB));
    machine.run(&script(nobody, |array| format!("whole write /dev/mapper/{} 7", array.name)));

    // All of it was written whole, so that Linux's parity fits, and ours stays the same where nothing is written.
    let whole = table(&machine, nobody, false);
    let written = served(&machine, &whole, |array, name| {
        expect_pattern(name, machine.copy_out(name), 7);
        scribble(&machine, name, array.nth);
        machine.sha256(name)
    });
    // Without devices the kernel computes what they had from the parity that we wrote.
    for missing in [nobody, Array::missing] {
        let judged = machine.run(&script(missing, |array| {
            let name = array.name;
            let last = if missing(array).is_empty() {
                "true".into()
            } else {
                format!("whole write /dev/mapper/{name} 9")
            };
            format!("fact {name} sha256 $(sha256 /dev/mapper/{name})\n{last}")
        }));
        let facts = Facts(&judged.stdout);
        for (array, sum) in arrays().iter().zip(&written) {
            assert_eq!(facts.get(array.name, "sha256"), sum, "{} without {:?}", array.name, missing(array));
        }
    }

    let degraded = table(&machine, Array::missing, false);
    let written = served(&machine, &degraded, |array, name| {
        expect_pattern(name, machine.copy_out(name), 9);
        scribble(&machine, name, 100 + array.nth);
        machine.sha256(name)
    });
    let judged = machine.run(&script(Array::missing, |array| {
        format!("fact {name} sha256 $(sha256 /dev/mapper/{name})", name = array.name)
    }));
    for (array, sum) in arrays().iter().zip(&written) {
        assert_eq!(Facts(&judged.stdout).get(array.name, "sha256"), sum, "{}", array.name);
    }

    // We rebuild those devices. Without others, the kernel finds in them what they lacked.
    let server = serve(&machine, &table(&machine, nobody, true));
    let due: usize = arrays().iter().map(|array| array.missing().len()).sum();
    until("all devices are rebuilt", || server.said().matches("has all data of member").count() == due);
    stop(&machine, server);
    let others = |array: &Array| -> &'static [u64] { if array.parities == 2 { &[1, 3] } else { &[0] } };
    let judged = machine.run(&script(others, |array| {
        format!("fact {name} sha256 $(sha256 /dev/mapper/{name})", name = array.name)
    }));
    for (array, sum) in arrays().iter().zip(&written) {
        assert_eq!(Facts(&judged.stdout).get(array.name, "sha256"), sum, "{} rebuilt", array.name);
    }
}

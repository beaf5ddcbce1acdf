//! Thin pools, volumes and snapshots that our verbs made, taken into use by the real kernel and LVM: activated, written, checked,
//! changed there and again by us.

use crate::machine::{Facts, MIB, Machine};
use crate::support::nbd::{Raw, python};
use crate::support::run;

fn verb(machine: &Machine, args: &[&str]) -> String {
    let all = [args, &["--disk", "a", "b"]].concat();
    machine.note("verb", &all.join(" "));
    run(&mut machine.scratch.blockwork(all))
}

const FUNCTIONS: &str = r#"
MIB=$((1024 * 1024))
up() { vgchange -ay -K vg >&2; }
# Which thin volumes there are, and what they hold.
tell() {
    local names="$(lvs --noheadings -O lv_name -o lv_name -S 'segtype=thin' vg | xargs)" name
    fact text volumes "${names// /,}"
    for name in $names; do fact $name sha256 $(sha256 /dev/vg/$name); done
}
# Everything at rest, LVM content, and the pool's metadata whole.
down() {
    sync
    vgchange -an vg >&2
    said=$(vgck vg 2>&1) && [ -z "$said" ]
    lvchange -ay -y vg/pool_tmeta >&2
    thin_check -q /dev/vg/pool_tmeta
    fact pool transaction "$(thin_dump /dev/vg/pool_tmeta | sed -n 's/.*transaction="\([0-9]*\)" flags.*/\1/p')"
    lvchange -an vg/pool_tmeta >&2
}
"#;

#[test]
fn what_we_make_the_kernel_activates_writes_and_changes_in_turns_with_us() {
    let mut machine = Machine::new();
    machine.disk("a", 96 * MIB);
    machine.disk("b", 64 * MIB);
    verb(&machine, &["vg", "create", "vg", "a", "b"]);
    verb(&machine, &["lv", "create", "vg/pool", "--thin-pool", "--size", "40M"]);
    verb(&machine, &["lv", "create", "vg/one", "--thin", "pool", "-V", "100M"]);
    let made = machine.run(&format!(
        "{FUNCTIONS}
        up
        pattern write /dev/vg/one 0 $((9 * MIB)) 1
        lvcreate -y -T -n two -V 20m vg/pool >&2
        pattern write /dev/vg/two 0 $((2 * MIB)) 2
        fact one sha256 $(sha256 /dev/vg/one)
        down"
    ));
    assert_eq!(Facts(&made.stdout).get("pool", "transaction"), "2");
    let one = Facts(&made.stdout).get("one", "sha256").to_owned();
    verb(&machine, &["lv", "snapshot", "vg/one", "--name", "snap"]);
    verb(&machine, &["lv", "remove", "vg/two"]);
    verb(&machine, &["lv", "resize", "vg/pool", "--size", "+12M"]);
    verb(&machine, &["lv", "resize", "vg/pool", "--pool-metadata-size", "+4M"]);
    let again = machine.run(&format!(
        "{FUNCTIONS}
        up
        fact snap origin \"$(lvs --noheadings -o origin vg/snap | tr -d ' ')\"
        pattern write /dev/vg/one 0 $((3 * MIB)) 3
        pattern write /dev/vg/one $((20 * MIB)) $((24 * MIB)) 4
        fact snap sha256 $(sha256 /dev/vg/snap)
        dmsetup status vg-pool-tpool >&2
        fact pool room \"$(dmsetup status vg-pool-tpool | cut -d' ' -f5,6 | sed 's|[0-9]*/||g')\"
        lvremove -y vg/snap >&2
        fact one sha256 $(sha256 /dev/vg/one)
        down"
    ));
    let facts = Facts(&again.stdout);
    assert_eq!(facts.get("snap", "origin"), "one");
    assert_eq!(facts.get("snap", "sha256"), one, "the snapshot is not what its origin was");
    assert_eq!(facts.get("pool", "room"), "2048 832");
    // The kernel's last change is the one behind our two.
    assert_eq!(facts.get("pool", "transaction"), "5");
    // Written by us, together with a snapshot; then read and checked there.
    verb(&machine, &["lv", "snapshot", "vg/one", "--name", "later"]);
    let served = machine.serve(&["a", "b"], &["vg/one", "vg/later"]);
    assert_eq!(machine.sha256("vg/one"), facts.get("one", "sha256"));
    let names = ["vg/one", "vg/later"];
    write(&machine, "vg/one", 60, 4);
    write(&machine, "vg/one", 1, 2);
    write(&machine, "vg/later", 22, 3);
    let hashes = names.map(|name| machine.sha256(name));
    served.stop();
    let last = machine.run(&format!(
        "{FUNCTIONS}
        up
        for name in one later; do fact $name sha256 $(sha256 /dev/vg/$name); done
        down"
    ));
    for (name, hash) in names.iter().zip(&hashes) {
        assert_eq!(Facts(&last.stdout).get(&name[3..], "sha256"), hash, "{name}");
    }
    assert_eq!(Facts(&last.stdout).get("pool", "transaction"), "6");
}

/// Writes so many MiB at so many MiB.
fn write(machine: &Machine, volume: &str, at: u64, mib: u64) {
    let uri = machine.scratch.uri(volume);
    python(&format!(
        "h = connect({uri:?})\nfor at in range({mib}):\n    h.pwrite(os.urandom(1 << 20), ({at} + at) << 20)\nh.flush()\n"
    ));
}

#[test]
fn what_changed_while_it_was_served_the_kernel_activates_and_goes_on_with() {
    let mut machine = Machine::new();
    machine.disk("a", 96 * MIB);
    machine.disk("b", 64 * MIB);
    verb(&machine, &["vg", "create", "vg", "a", "b"]);
    verb(&machine, &["lv", "create", "vg/pool", "--thin-pool", "--size", "20M"]);
    verb(&machine, &["lv", "create", "vg/one", "--thin", "pool", "-V", "40M"]);
    let extended = ["--set", "thin-pool:thin_pool_autoextend_threshold=60"];
    let served = machine.serve(&["a", "b"], &extended);
    let ask = |args: &[&str]| {
        machine.note("asked", &args.join(" "));
        run(&mut machine.scratch.blockwork(args))
    };
    write(&machine, "vg/one", 0, 9);
    ask(&["lv", "snapshot", "vg/one", "--name", "snap"]);
    write(&machine, "vg/one", 4, 12);
    ask(&["lv", "create", "vg/two", "--thin", "pool", "-V", "1G"]);
    ask(&["lv", "create", "vg/plain", "--size", "8M"]);
    ask(&["lv", "resize", "vg/plain", "--size", "+4M"]);
    for (volume, at) in [("vg/two", 1000), ("vg/snap", 30), ("vg/plain", 9)] {
        write(&machine, volume, at, 2);
    }
    ask(&["lv", "snapshot", "vg/snap", "--name", "gone"]);
    ask(&["lv", "rename", "vg/two", "vg/second"]);
    ask(&["lv", "resize", "vg/pool", "--pool-metadata-size", "+4M"]);
    let names = ["one", "snap", "second", "plain"];
    let hashes = names.map(|name| machine.sha256(&format!("vg/{name}")));
    ask(&["lv", "remove", "vg/gone"]);
    served.stop();
    let judged = machine.run(&format!(
        "{FUNCTIONS}
        up
        for name in one snap second plain; do fact $name sha256 $(sha256 /dev/vg/$name); done
        fact pool mib $(lvs --noheadings --units m --nosuffix -o lv_size vg/pool | cut -d. -f1)
        lvcreate -y -s -n theirs vg/snap >&2
        lvremove -y vg/snap >&2
        down"
    ));
    let facts = Facts(&judged.stdout);
    for (name, hash) in names.iter().zip(&hashes) {
        assert_eq!(facts.get(name, "sha256"), hash, "{name}");
    }
    assert!(facts.number("pool", "mib") > 20, "it has extended itself");
    assert_eq!(facts.get("pool", "transaction"), "7");
}

/// Volumes that the guest reads as we do, by these sums; nothing else of the group is there but the pool.
fn expect_volumes(facts: &Facts, volumes: &[(&str, &str)]) {
    let names: Vec<&str> = volumes.iter().map(|(name, _)| *name).collect();
    assert_eq!(facts.get("text", "volumes"), names.join(","));
    for (name, hash) in volumes {
        assert_eq!(facts.get(name, "sha256"), *hash, "{name}, by the kernel");
    }
}

#[test]
fn thin_snapshots_take_the_places_of_their_origins_by_us_and_by_the_kernel_in_turns() {
    let mut machine = Machine::new();
    machine.disk("a", 96 * MIB);
    machine.disk("b", 64 * MIB);
    verb(&machine, &["vg", "create", "vg", "a", "b"]);
    verb(&machine, &["lv", "create", "vg/pool", "--thin-pool", "--size", "100M"]);
    verb(&machine, &["lv", "create", "vg/one", "--thin", "pool", "-V", "40M"]);
    let served = machine.serve(&["a", "b"], &[]);
    let ask = |args: &[&str]| {
        machine.note("asked", &args.join(" "));
        run(&mut machine.scratch.blockwork(args))
    };
    write(&machine, "vg/one", 0, 12);
    for (name, at) in [("first", 3), ("second", 6), ("third", 9)] {
        ask(&["lv", "snapshot", "vg/one", "--name", name]);
        write(&machine, &format!("vg/{name}"), at, 8);
    }
    write(&machine, "vg/one", 20, 4);
    let sum = |name: &str| machine.sha256(&format!("vg/{name}"));
    let [one, first, second, third] = ["one", "first", "second", "third"].map(sum);
    // A client keeps its origin, and the server is killed under it.
    let client = Raw::open_export(&machine.scratch.at("socket"), "vg/one");
    let said = ask(&["lv", "merge", "vg/first"]);
    assert!(said.contains("vg/one is in use"), "{said}");
    assert_eq!(machine.sha256("vg/one"), one);
    served.kill();
    drop(client);
    let judged = machine.run(&format!(
        "{FUNCTIONS}
        fact text merging \"$(lvs -a --noheadings -o lv_merging vg/first | tr -d ' ')\"
        up
        is_gone() {{ ! lvs vg/$1 2>/dev/null; }}
        wait_for is_gone first
        tell
        # Another one, of what was a snapshot of the snapshot's origin; then one that LVM leaves for later.
        lvcreate -y -s -kn -n fourth vg/one >&2
        pattern write /dev/vg/fourth $((30 * MIB)) $((2 * MIB)) 7
        fact fourth sha256 $(sha256 /dev/vg/fourth)
        exec 8</dev/vg/one
        lvconvert -y --merge vg/fourth >&2
        fact text delayed \"$(lvs -a --noheadings -o lv_merging vg/fourth | tr -d ' ')\"
        exec 8<&-
        down"
    ));
    let facts = Facts(&judged.stdout);
    assert_eq!(facts.get("text", "merging"), "merging");
    expect_volumes(&facts, &[("one", &first), ("second", &second), ("third", &third)]);
    assert_eq!(facts.get("text", "delayed"), "merging");
    let fourth = facts.get("fourth", "sha256").to_owned();

    // By the verb, what LVM has left, and then one that we make; by the kernel, one more of ours.
    verb(&machine, &["lv", "merge", "vg/fourth"]);
    let served = machine.serve(&["a", "b"], &[]);
    assert_eq!(machine.sha256("vg/one"), fourth);
    ask(&["lv", "snapshot", "vg/second", "--name", "fifth"]);
    write(&machine, "vg/fifth", 33, 3);
    ask(&["lv", "snapshot", "vg/fifth", "--name", "sixth"]);
    write(&machine, "vg/sixth", 36, 2);
    let [fifth, sixth] = ["fifth", "sixth"].map(sum);
    ask(&["lv", "merge", "vg/fifth"]);
    assert_eq!(machine.sha256("vg/second"), fifth);
    served.stop();
    let judged = machine.run(&format!(
        "{FUNCTIONS}
        up
        fact sixth origin \"$(lvs --noheadings -o origin vg/sixth | tr -d ' ')\"
        tell
        lvconvert -y --merge vg/sixth >&2
        fact second after $(sha256 /dev/vg/second)
        down"
    ));
    let facts = Facts(&judged.stdout);
    expect_volumes(&facts, &[("one", &fourth), ("second", &fifth), ("sixth", &sixth), ("third", &third)]);
    assert_eq!(facts.get("sixth", "origin"), "second");
    assert_eq!(facts.get("second", "after"), sixth);
    let served = machine.serve(&["a", "b"], &["--read-only"]);
    assert_eq!(["one", "second", "third"].map(sum), [fourth, sixth, third]);
    served.stop();
}

/// An external origin is read by its volumes, and by whoever asks for it; they are written to, and it is not.
#[test]
fn volumes_with_an_external_origin_are_written_beside_it_as_by_the_kernel() {
    let mut machine = Machine::new();
    machine.disk("a", 96 * MIB);
    machine.disk("b", 64 * MIB);
    let made = machine.run(&format!(
        "{FUNCTIONS}
        lvm_up 2>/dev/null || true
        pvcreate -y /d/a /d/b >&2
        vgcreate -s 1m vg /d/a /d/b >&2
        lvcreate -y -L 40m -T vg/pool >&2
        lvcreate -y -L 9m -n ext vg >&2
        pattern write /dev/vg/ext 0 $((9 * MIB)) 1
        lvchange -an vg/ext >&2
        lvchange -pr vg/ext >&2
        lvcreate -y -s -kn -n one --thinpool vg/pool vg/ext >&2
        lvcreate -y -s -kn -n two vg/one >&2
        lvextend -L 12m vg/two >&2
        pattern write /dev/vg/one $((2 * MIB)) $((MIB + 4096)) 2
        fact ext origin \"$(lvs --noheadings -o origin vg/one | tr -d ' ')\"
        fact ext sha256 $(sha256 /dev/vg/one)
        down"
    ));
    let facts = Facts(&made.stdout);
    assert_eq!(facts.get("ext", "origin"), "ext");
    let served = machine.serve(&["a", "b"], &[]);
    assert_eq!(machine.sha256("vg/one"), facts.get("ext", "sha256"));
    let is_read_only = |name: &str| {
        python(&format!("print(connect({:?}).is_read_only())\n", machine.scratch.uri(name))).trim() == "True"
    };
    assert_eq!(["vg/ext", "vg/one", "vg/two"].map(is_read_only), [true, false, false]);
    let said = run(&mut machine.scratch.blockwork(["lv", "show", "vg/one", "--json"]));
    let said: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!(said[0]["origin"], "ext");
    // Whole blocks, parts of them, and beyond the origin's end.
    for (name, at) in
        [("vg/one", 2 << 20), ("vg/one", (5 << 20) + 4096), ("vg/two", 1000), ("vg/two", 10 << 20)]
    {
        let uri = machine.scratch.uri(name);
        python(&format!("h = connect({uri:?})\nh.pwrite(os.urandom(150000), {at})\nh.flush()\n"));
    }
    let hashes = ["ext", "one", "two"].map(|name| machine.sha256(&format!("vg/{name}")));
    served.stop();
    let judged = machine.run(&format!(
        "{FUNCTIONS}
        up
        for name in ext one two; do fact $name sha256 $(sha256 /dev/vg/$name); done
        down"
    ));
    let facts = Facts(&judged.stdout);
    for (name, hash) in ["ext", "one", "two"].iter().zip(&hashes) {
        assert_eq!(facts.get(name, "sha256"), hash, "{name}");
    }
}

/// A pool whose map is a mirror, as LVM makes it for who asks for that: each verb leaves the mirror in order, and nothing is resynced
/// when the pool is activated.
#[test]
fn a_mirrored_map_is_in_order_after_each_of_our_verbs() {
    let mut machine = Machine::new();
    machine.disk("a", 96 * MIB);
    machine.disk("b", 64 * MIB);
    machine.run(&format!(
        "{FUNCTIONS}
        vgcreate vg /d/a /d/b >&2
        lvcreate -y --type raid1 -m 1 -L 20m -n pool vg >&2
        lvcreate -y --type raid1 -m 1 -L 4m -n map vg >&2
        in_sync() {{ [ \"$(lvs --noheadings -o sync_percent vg/pool vg/map | xargs)\" = '100.00 100.00' ]; }}
        wait_for in_sync
        lvconvert -y --type thin-pool --poolmetadata vg/map vg/pool >&2
        lvcreate -y -T -V 20m -n one vg/pool >&2
        pattern write /dev/vg/one 0 $MIB 1
        vgchange -an vg >&2"
    ));
    let verbs: [&[&str]; 4] = [
        &["lv", "snapshot", "vg/one", "--name", "snap"],
        &["lv", "create", "vg/two", "--thin", "pool", "-V", "10M"],
        &["lv", "merge", "vg/snap"],
        &["lv", "remove", "vg/two"],
    ];
    for args in verbs {
        verb(&machine, args);
        let said = run(&mut machine.scratch.blockwork(["scan", "a", "b"]));
        assert!(!said.contains("mirrors may differ"), "{args:?}: {said}");
    }
    // The same of a server that ends right then, and serves none of the pool's volumes.
    verb(&machine, &["lv", "create", "vg/plain", "--size", "4M"]);
    let served = machine.serve(&["a", "b"], &["vg/plain"]);
    run(&mut machine.scratch.blockwork(["lv", "snapshot", "vg/one", "--name", "again"]));
    served.stop();
    let said = run(&mut machine.scratch.blockwork(["scan", "a", "b"]));
    assert!(!said.contains("mirrors may differ"), "{said}");
    let judged = machine.run(&format!(
        "{FUNCTIONS}
        up
        pattern verify /dev/vg/one 0 $MIB 1
        vgchange -an vg >&2
        fact map health \"$(vgck vg 2>&1)\""
    ));
    assert_eq!(Facts(&judged.stdout).get("map", "health"), "");
}

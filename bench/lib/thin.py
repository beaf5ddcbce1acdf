"""Section `thin`: what thin volumes cost beside thick ones. Mapped reads and writes, holes, two pools at once, over null disks; first
writes beside a sparse raw file and qcow2 in qemu-storage-daemon; the time a snapshot takes. Counts beside rates."""

import os
import shutil
import statistics
import subprocess
import tempfile
import threading
import time

from . import machine
from .snapshot import counted, ratio, serve_table
from .tables import errors, median, show, show_ratio

MIB = 1 << 20
BLOCK = 64 << 10
# A volume of 8 GiB, all of it mapped, in no order; a map of 1 MiB.
MAPPED_BLOCKS = 1 << 17
METADATA_BYTES = 32 * MIB
# Of first writes. A random 4 KiB write of this many blocks rarely meets one that has come before.
FIRST_BLOCKS = 1 << 18
FIRST_SEQUENTIAL = 512 * MIB
THICK, THIN, HOLE = "thick", "thin", "thin, hole"
RAW, QCOW2 = "sparse raw file", "qsd, qcow2"
# rw, bs, depth, flush after, I/Os
FIRST = [("write", "1m", 4, None, FIRST_SEQUENTIAL // MIB), ("randwrite", "4k", 32, None, 32_000), ("randwrite", "4k", 32, 32, 8000)]
# What is wanted of each ratio.
GOALS = {"mapped": 0.95, "hole": 0.9, "pools": 0.95, ("write", None): 0.8, ("randwrite", None): 0.7, ("randwrite", 32): 3.0}


def thin(bench):
    if not bench.nbdload or not machine.has("thin_restore"):
        return ["Skipped: needs nbdload (--build) and thin_restore (thin-provisioning-tools).", ""]
    with tempfile.TemporaryDirectory(prefix="blockwork-bench-", dir="/dev/shm") as memory:
        return mapped(bench, memory) + pools(bench, memory) + first_writes(bench, memory) + snapshots(bench, memory)


def device(number, blocks, place):
    """What thin_restore reads of a device with so many blocks mapped."""
    head = (f'<device dev_id="{number}" mapped_blocks="{blocks}" transaction="0" creation_time="0" snap_time="0">\n')
    body = "".join(f'<single_mapping origin_block="{at}" data_block="{place(at)}" time="0"/>\n' for at in range(blocks))
    return f"{head}{body}</device>\n"


def metadata(path, data_blocks, *devices):
    """The metadata of a pool, made by another program than ours."""
    with open(path, "wb") as file:
        file.truncate(METADATA_BYTES)
    with open(f"{path}.xml", "w") as xml:
        xml.write(f'<superblock uuid="" time="0" transaction="0" version="2" data_block_size="{BLOCK // 512}" '
                  f'nr_data_blocks="{data_blocks}">\n{"".join(devices)}</superblock>\n')
    subprocess.run(["thin_restore", "-i", f"{path}.xml", "-o", path], check=True, capture_output=True)
    os.unlink(f"{path}.xml")
    return path


def scattered(at):
    """An odd number of steps visits all blocks of a power of two in an order that is none."""
    return (at * 7919 + 13) % MAPPED_BLOCKS


def mapped_table(folder):
    """A thick volume, half of one on the same disk and half of one on another, and two pools with a volume that is mapped, another one (half
    as large), and one that is a hole."""
    size, sectors = MAPPED_BLOCKS * BLOCK, MAPPED_BLOCKS * BLOCK // 512
    lines = [f"thick: 0 {sectors} linear null:{size} 0", f"thick2: 0 {sectors // 2} linear null:{size} {sectors // 2}",
             f"thick3: 0 {sectors // 2} linear null:{size + BLOCK} 0"]
    # A null disk is one by its size: each pool has one of its own.
    for pool, size in (("a", 2 * MAPPED_BLOCKS * BLOCK), ("b", (2 * MAPPED_BLOCKS + 1) * BLOCK)):
        path = f"{folder}/mapped-{pool}.img"
        if not os.path.exists(path):
            half = MAPPED_BLOCKS // 2
            metadata(path, 2 * MAPPED_BLOCKS, device(1, MAPPED_BLOCKS, scattered),
                     device(2, half, lambda at: MAPPED_BLOCKS + scattered(2 * at) % MAPPED_BLOCKS), device(3, 0, None))
        lines += [f"{pool}: 0 {2 * sectors} thin-pool {path} null:{size} {BLOCK // 512} 0 1 skip_block_zeroing",
                  f"{pool}1: 0 {sectors} thin dm/{pool} 1", f"{pool}2: 0 {sectors // 2} thin dm/{pool} 2",
                  f"{pool}3: 0 {sectors} thin dm/{pool} 3"]
    return "\n".join(lines) + "\n"


def load(bench, server, export, rw, connections, extra=()):
    return bench.nbdload(server, rw, "4k", 32, connections, bench.seconds, ["--export", export, *extra])


def mapped(bench, folder):
    """Thick and thin by turns, on one server. Each connection has a worker of its own, as far as there are processors."""
    rows = []
    exports = {THICK: "dm/thick", THIN: "dm/a1", HOLE: "dm/a3"}
    with bench.starter() as starter:
        server = serve_table(starter, bench, mapped_table(folder))
        if not server:
            return []
        # All of the map is read before anything is measured.
        bench.nbdload(server, "read", "64k", 32, 1, extra=["--export", "dm/a1", "--bytes", str(MAPPED_BLOCKS * BLOCK)])
        counting = ["--syscalls"] if machine.has("perf") and machine.is_root() else None
        for rep in range(bench.reps):
            for rw in ("randread", "randwrite"):
                for connections in sorted({1, 2, os.cpu_count() or 1}):
                    for peer in (THICK, THIN) + ((HOLE,) if rw == "randread" else ()):
                        cell = {"rw": rw, "connections": connections}
                        row = bench.row(cell, peer, "nbdload", rep, lambda: load(bench, server, exports[peer], rw, connections))
                        if counting and rep == 0:
                            row["syscalls"] = load(bench, server, exports[peer], rw, connections, counting).get("syscalls")
                        rows.append(row)
    keys = ["rw", "connections"]
    lines = ["**4 KiB at depth 32 over null disks, IOPS; in brackets the share of thick in the same round (medians); server CPU, us, and system calls per I/O**",
             "", f"| {' | '.join([*keys, THICK, THIN, HOLE])} | goals | CPU | system calls |", "|" + " --- |" * 8]
    for cell in dict.fromkeys(tuple(row[key] for key in keys) for row in rows):
        match = dict(zip(keys, cell))
        peers = [peer for peer in (THICK, THIN, HOLE) if median(rows, "iops", peer=peer, **match)]
        shares = {peer: ratio(rows, peer, THICK, "iops", match) for peer in peers}
        line = [*map(str, cell)] + [rate_and_share(rows, peer, THICK, match) for peer in (THICK, THIN, HOLE)]
        goals = [(shares.get(THIN), GOALS["mapped"])] + ([(shares[HOLE], GOALS["hole"])] if HOLE in shares else [])
        line.append(", ".join(verdict(*goal) for goal in goals))
        line += [", ".join(show(median(rows, value, peer=peer, **match)) for peer in peers) for value in ("server_us", "syscalls")]
        lines.append("| " + " | ".join(line) + " |")
    return lines + ["", "(A hole is answered with zeros, which are written to memory; a null disk writes nothing to the memory of a read.)", ""] + errors(rows)


def rate_and_share(rows, peer, other, match):
    rate, share = median(rows, "iops", peer=peer, **match), ratio(rows, peer, other, "iops", match)
    return "" if rate is None else show(rate) if peer == other or share is None else f"{show(rate)} ({show_ratio(share)})"


def verdict(share, goal):
    """Whether a goal is met, in words."""
    return "" if share is None else f"{'met' if share >= goal else 'missed'} ({goal})"


# One pool and two.

def at_once(bench, server, exports):
    """Loads several exports at the same time; the sum of their rates."""
    found = {}

    def run(export):
        found[export] = load(bench, server, export, "randread", 1)
    threads = [threading.Thread(target=run, args=[export]) for export in exports]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    failed = [row["error"] for row in found.values() if row.get("error")]
    return {"error": failed[0]} if failed else {"iops": sum(row["iops"] for row in found.values())}


def pools(bench, folder):
    rows = []
    with bench.starter() as starter:
        server = serve_table(starter, bench, mapped_table(folder))
        if not server:
            return []
        for export in ("dm/a1", "dm/a2", "dm/b2"):
            bench.nbdload(server, "read", "64k", 32, 1, extra=["--export", export, "--bytes", str(MAPPED_BLOCKS * BLOCK // 2)])
        pairs = {"one pool": ("dm/a1", "dm/a2"), "two pools": ("dm/a1", "dm/b2"),
                 "thick, one disk": ("dm/thick", "dm/thick2"), "thick, two disks": ("dm/thick", "dm/thick3")}
        for rep in range(bench.reps):
            for peer, exports in pairs.items():
                rows.append(bench.row({"rw": "randread"}, peer, "nbdload", rep, lambda: at_once(bench, server, exports)))
    match = {"rw": "randread"}
    one, thick = (rate_and_share(rows, *pair, match) for pair in (("one pool", "two pools"), ("thick, one disk", "thick, two disks")))
    share = ratio(rows, "one pool", "two pools", "iops", match)
    return [f"**Two clients, 4 KiB random reads at depth 32 each.** One pool: {one} IOPS; two pools: {show(median(rows, 'iops', peer='two pools'))}; "
            f"{verdict(share, GOALS['pools'])}. Thick volumes, read in the same way: on one disk {thick}, on two "
            f"{show(median(rows, 'iops', peer='thick, two disks'))}.", ""] + errors(rows)


# First writes.

def start_first(bench, starter, peer, folder):
    """A server of an empty disk, and what of its leaves there is to count."""
    size = FIRST_BLOCKS * BLOCK
    data = f"{folder}/first-data.img"
    for path in (data, f"{folder}/first.qcow2"):
        if os.path.exists(path):
            os.unlink(path)
    if peer == QCOW2:
        made = subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", f"{folder}/first.qcow2", str(size)], capture_output=True)
        file = f"driver=qcow2,node-name=n0,file.driver=file,file.filename={folder}/first.qcow2,file.aio=io_uring,file.cache.direct=on"
        return (starter.qsd_nbd("qsd", file) if made.returncode == 0 else None), ""
    with open(data, "wb") as file:
        file.truncate(size)
    if peer == RAW:
        return serve_table(starter, bench, f"raw: 0 {size // 512} linear {data} 0\n"), "dm/raw"
    path = metadata(f"{folder}/first-metadata.img", FIRST_BLOCKS, device(1, 0, None))
    table = f"pool: 0 {size // 512} thin-pool {path} {data} {BLOCK // 512} 0\nthin: 0 {size // 512} thin dm/pool 1\n"
    return serve_table(starter, bench, table), "dm/thin"


def first_once(bench, folder, peer, rw, bs, depth, flush_every, ios):
    """All on a new server; what it flushes at its end is not part of it."""
    with bench.starter() as starter:
        server, export = start_first(bench, starter, peer, folder)
        if not server:
            return {}
        before = counted(server) if export else None
        extra = ["--export", export, "--ios", str(ios), "--seed", "7", *(["--flush-every", str(flush_every)] if flush_every else [])]
        row = bench.nbdload(server, rw, bs, depth, 1, extra=extra)
        if before and not row.get("error"):
            after = counted(server)
            for counter in ("writes", "flushes"):
                for name in after:
                    which = "metadata" if "metadata" in name else "data"
                    row[f"{which} {counter}"] = (after[name][counter] - before[name][counter]) / ios
        return row


def first_writes(bench, memory):
    rows = []
    disk = tempfile.mkdtemp(prefix="first-", dir=bench.data)
    for rep in range(bench.reps):
        for medium, folder in (("memory", memory), ("disk", disk)):
            for rw, bs, depth, flush_every, ios in FIRST:
                for peer in (RAW, THIN, QCOW2):
                    cell = {"medium": medium, "rw": rw, "flush every": flush_every}
                    measure = lambda: first_once(bench, folder, peer, rw, bs, depth, flush_every, ios)  # noqa: E731
                    rows.append(bench.row(cell, peer, "nbdload", rep, measure))
    shutil.rmtree(disk)
    keys = ["medium", "rw", "flush every"]
    counts = ["data writes", "data flushes", "metadata writes", "metadata flushes"]
    lines = ["**First writes (1 MiB sequential; 4 KiB random at depth 32), I/Os a second, and in brackets the share of the sparse raw file in the same round (medians); "
             "what reached thin's leaves per I/O; server CPU, us per I/O, of all three**", "",
             f"| {' | '.join([*keys, RAW, THIN, QCOW2])} | thin : qcow2 | goal | {' | '.join(counts)} | CPU |", "|" + " --- |" * 13]
    for cell in dict.fromkeys(tuple(row[key] for key in keys) for row in rows):
        match = dict(zip(keys, cell))
        line = [str(key or "") for key in cell] + [rate_and_share(rows, peer, RAW, match) for peer in (RAW, THIN, QCOW2)]
        raw, qcow2 = (ratio(rows, THIN, other, "iops", match) for other in (RAW, QCOW2))
        line.append("" if qcow2 is None else show_ratio(qcow2))
        line.append(verdict(qcow2 if match["flush every"] else raw, GOALS[match["rw"], match["flush every"]]))
        line += [show(median(rows, count, peer=THIN, **match)) for count in counts]
        line.append(", ".join(show(median(rows, "server_us", peer=peer, **match)) for peer in (RAW, THIN, QCOW2)))
        lines.append("| " + " | ".join(line) + " |")
    return lines + ["", "(`memory`: files on tmpfs, where a flush costs nothing; `disk`: files where it costs what it costs. With flushes, the goal is against qcow2.)", ""] + errors(rows)


# Snapshots.

def snapshots(bench, folder):
    """By `blockwork message`, on a pool that nobody uses: from the start of the process to its end, less that of one that changes a number."""
    def timed(table, *words):
        begun = time.monotonic()
        done = subprocess.run([bench.blockwork, "message", "--table", table, "dm/pool", "0", *words], capture_output=True, text=True)
        return (time.monotonic() - begun) * 1000 if done.returncode == 0 else None
    lines = ["| volume | blocks mapped | create_snap, ms | set_transaction_id, ms |", "| --- | --- | --- | --- |"]
    for name, blocks in (("small", 16), ("huge", MAPPED_BLOCKS)):
        path = metadata(f"{folder}/snap-{name}.img", MAPPED_BLOCKS, device(1, blocks, scattered))
        table = f"{folder}/{name}.table"
        with open(table, "w") as file:
            file.write(f"pool: 0 {MAPPED_BLOCKS * BLOCK // 512} thin-pool {path} null:{MAPPED_BLOCKS * BLOCK} {BLOCK // 512} 0\n")
        times = [(timed(table, f"create_snap {2 + rep} 1"), timed(table, f"set_transaction_id {rep} {rep + 1}"))
                 for rep in range(max(5, bench.reps))]
        both = [statistics.median(times) if all(times) else None for times in zip(*times)]
        lines.append(f"| {name} | {blocks} | {show(both[0])} | {show(both[1])} |")
    return ["**Time to make a snapshot, with the start of a process, which both have (goal: under 10 ms whatever the size)**", "", *lines, ""]

"""Section `bound`: how near to the file itself any NBD server of our shape can come on this machine.

In turns: fio on the file, the bare server (crates/uring/examples/bare_server.rs) in its variants, and `blockwork serve`. All use one
file, one after the other, so that each server is started for its turn and ended after it."""

import json
import statistics
import subprocess

from . import clients, machine
from .servers import Server
from .tables import OURS, errors, median, show, show_ratio

RAW = "raw fio"
BARE = "bare"
PORTION = ("--portion", "4")
VARIANTS = {
    "bare, whole batches": (),
    BARE: PORTION,
    "bare, spinning": (*PORTION, "--spin"),
}
POLLING = f"{OURS} --poll 50"
DEPTHS = (1, 32, 128)
# What a disk gives with fewer requests under way: those that are on their way to and from the client are not at the disk.
RAW_DEPTHS = (1, 16, 24, 32, 128)


def bare(bench, starter, name, path):
    sock, log = starter.paths(name)
    command = [bench.bare, path, sock, *VARIANTS[name]]
    return starter.start(name, bench.bare, lambda: Server(name, command, log, sock).wait_for_socket())


def started(bench, starter, name, path):
    if name in VARIANTS:
        return bare(bench, starter, name, path)
    return starter.blockwork_nbd(name, f"{path},direct=on", *(("--poll", "50") if name == POLLING else ()))


def turn(bench, name, cell, rep, path):
    """One server from start to end: a timed run, and in the first round one that counts system calls."""
    rows = []
    with bench.starter() as starter:
        server = started(bench, starter, name, path)
        if not server:
            return rows
        load = (server, cell["rw"], "4k", cell["depth"], 1)
        rows.append(bench.row(cell, name, "nbdload", rep, lambda: bench.nbdload(*load, bench.seconds)))
        if rep == 0 and machine.has("perf") and machine.is_root():
            counted = bench.nbdload(*load, min(bench.seconds, 0.5), ["--syscalls"])
            rows.append({**cell, "peer": name, "rep": rep, "syscalls": counted.get("syscalls")})
    return rows


def measure(bench, path):
    rows = []
    for rep in range(bench.reps):
        for rw in ("randread", "randwrite"):
            for depth in RAW_DEPTHS:
                cell = {"rw": rw, "depth": depth}
                rows.append(bench.row(cell, RAW, "fio", rep, lambda: clients.fio_file(path, rw, "4k", depth, 1, bench.seconds)))
                if depth in DEPTHS:
                    for name in (*VARIANTS, OURS, POLLING):
                        rows += turn(bench, name, cell, rep, path)
    return rows


def ratio(rows, name, cell, other):
    """The median over the rounds of the ratio within a round."""
    def rates(peer):
        return {row["rep"]: row["iops"] for row in rows
                if row["peer"] == peer and row.get("iops") and all(row[key] == cell[key] for key in cell)}
    ours, theirs = rates(name), rates(other)
    both = [ours[rep] / theirs[rep] for rep in ours if rep in theirs]
    return statistics.median(both) if both else None


def rates_table(rows):
    names = [*VARIANTS, OURS, POLLING]
    lines = ["**IOPS, and in brackets the share of raw fio's in the same round (medians)**", "",
             "| rw | depth | raw fio | " + " | ".join(names) + f" | {OURS} : {BARE} |", "|" + " --- |" * (len(names) + 4)]
    for rw in ("randread", "randwrite"):
        for depth in DEPTHS:
            cell = {"rw": rw, "depth": depth}
            line = [rw, str(depth), show(median(rows, "iops", peer=RAW, **cell))]
            for name in names:
                share = ratio(rows, name, cell, RAW)
                line.append(f"{show(median(rows, 'iops', peer=name, **cell))} ({share:.2f})" if share else "")
            against = ratio(rows, OURS, cell, BARE)
            lines.append("| " + " | ".join([*line, show_ratio(against) if against else ""]) + " |")
    return lines + [""]


def costs_table(title, rows, value):
    names = [*VARIANTS, OURS, POLLING]
    lines = [f"**{title}**", "", "| rw | depth | " + " | ".join(names) + " |", "|" + " --- |" * (len(names) + 2)]
    for rw in ("randread", "randwrite"):
        for depth in DEPTHS:
            values = [show(median(rows, value, peer=name, rw=rw, depth=depth)) for name in names]
            lines.append(f"| {rw} | {depth} | " + " | ".join(values) + " |")
    return lines + [""]


def raw_table(rows):
    lines = ["**Raw fio at each depth: IOPS, and µs from request to completion (depth / IOPS)**", "",
             "| rw | " + " | ".join(f"depth {depth}" for depth in RAW_DEPTHS) + " |", "|" + " --- |" * (len(RAW_DEPTHS) + 1)]
    for rw in ("randread", "randwrite"):
        rates = [(depth, median(rows, "iops", peer=RAW, rw=rw, depth=depth)) for depth in RAW_DEPTHS]
        lines.append(f"| {rw} | " + " | ".join(f"{show(rate)}, {depth / rate * 1e6:.0f}" if rate else "" for depth, rate in rates)
                     + " |")
    return lines + [""]


def wake_up(bench):
    """What it takes until a thread that sleeps has the byte that another one wrote."""
    runs = []
    for _ in range(bench.reps):
        done = subprocess.run([bench.bare, "--wake-up"], capture_output=True, text=True)
        if done.returncode:
            return [f"- wake-ups were not measured: {done.stderr.strip()}", ""]
        runs.append(json.loads(done.stdout))
    middle = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
    return ["**A byte from one thread to another over a socket pair, µs**", "",
            "| other processor, asleep | other processor, spinning | same processor |", "| --- | --- | --- |",
            f"| {middle['idle_us']:.1f} | {middle['spinning_us']:.1f} | {middle['same_processor_us']:.1f} |", ""]


def bound(bench):
    missing = [what for what, there in (("nbdload", bench.nbdload), ("fio", machine.has("fio")),
                                        (bench.bare, machine.has(bench.bare))) if not there]
    if missing:
        return [f"Skipped: {', '.join(missing)} is not there (--build builds what is ours).", ""]
    rows = measure(bench, bench.file("raw"))
    return [*rates_table(rows), *costs_table("Server CPU, us per I/O", rows, "server_us"),
            *costs_table("Server system calls per I/O", rows, "syscalls"), *raw_table(rows), *wake_up(bench),
            machine.noise(rows), "", *errors(rows)]

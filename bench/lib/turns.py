"""Section `linearize`, and a part of section `fixed`: a setting off, on and auto, by the leaf crate's own benchmark, in short turns on one file: on the disk, and in
memory, where what is measured varies less.

Turns are summed by the six orders in which the ways take them. The better of off and on, by what requests take, is chosen by one half of these
sums and compared by the other, and the other way round: the larger of two figures is what chance has favoured, and would make auto look
worse than it is. Of the comparisons a tenth is left out at either end, so that a stall of the disk counts for neither side, and all is repeated until
the error of their mean is small. Before its turns auto makes requests of its own until it has decided, which from such noise takes its time; how
many is told.
What deciding costs, in instructions, is in section `instructions`: valgrind cannot run io_uring."""

import json
import math
import re
import statistics
import subprocess

from . import places

WAYS = ("off", "on", "auto")
# Elements, bytes of one, depth, requests of each way, direction.
VECTORED = ((8, 4096, 16, 240_000, "write"), (16, 65536, 16, 24_000, "write"))
ALONE = ((1, 4096, 32, 240_000, "read"), (1, 4096, 32, 240_000, "write"), (1, 65536, 16, 96_000, "read"), (1, 65536, 16, 96_000, "write"))
# The benchmark's orders, and turns of each way.
ORDERS, ROUNDS = 6, 240
# What is left out at either end. The deviation of the mean, as a part of it, that is small enough, and how many times more repetitions it is worth.
TRIMMED, ERROR, PATIENCE = 0.1, 0.004, 4
MEASURES = (("seconds", "Requests a second", lambda seconds: f"{1 / seconds:.0f}"),
            ("processor", "Processor time of a request, µs", lambda seconds: f"{seconds * 1e6:.2f}"))


def binary(bench):
    done = subprocess.run(["cargo", "bench", "--quiet", "-p", "blockwork-leaf", "--bench", "linearize", "--no-run",
                           "--message-format=json"], cwd=bench.root, capture_output=True, text=True)
    found = re.findall(r'"executable":"([^"]*linearize-[^"]*)"', done.stdout)
    return found[-1] if found else None


def sums(rows):
    """What a request took each way, seconds and processor's, in turns of all orders."""
    parts = []
    for row in rows:
        for start in range(0, ROUNDS, ORDERS):
            turns = {(way, measure): row[way][measure][start:start + ORDERS] for way in WAYS for measure, *_ in MEASURES}
            parts.append({key: sum(some) / (len(some) * row["requests"]) for key, some in turns.items()})
    return parts


def trimmed(values):
    """Their mean without either end, and the error of that."""
    values, cut = sorted(values), int(len(values) * TRIMMED)
    kept = values[cut:len(values) - cut]
    pulled = [min(max(value, kept[0]), kept[-1]) for value in values]
    return statistics.mean(kept), statistics.stdev(pulled) / ((1 - 2 * TRIMMED) * math.sqrt(len(values)))


def beside_better(parts, measure):
    """What auto took, as a part of what the faster way took, and the error of that."""
    logs = []
    for half in (0, 1):
        chosen, compared = parts[half::2], parts[1 - half::2]
        better = min(("off", "on"), key=lambda way: trimmed([part[way, "seconds"] for part in chosen])[0])
        logs += [math.log(part["auto", measure] / part[better, measure]) for part in compared]
    mean, error = trimmed(logs)
    return math.exp(mean), error


def measured(bench, program, place, path, shape):
    """Runs, until the error is small."""
    elements, element, depth, requests, direction = shape
    requests = requests // (10 if bench.quick else 1)
    command = [program, f"{path},direct=on,lock=off", *map(str, (elements, element, depth, requests, ROUNDS)), direction]
    run = lambda: json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)  # noqa: E731
    rows = []
    while len(rows) < bench.reps or (not bench.quick and len(rows) < PATIENCE * bench.reps and beside_better(sums(rows), "seconds")[1] > ERROR):
        rows.append(bench.keep_row({"place": place, "shape": shape, "rep": len(rows), **bench.quietly(run)}))
    return rows


def tables(bench, shapes):
    program = binary(bench)
    if not program:
        return ["Skipped: crates/leaf/benches/linearize.rs did not build.", ""]
    rows = {}
    with places.in_memory(bench, "turns") as memory:
        for place, path in (("disk", bench.file("linearize")), ("memory", memory)):
            if path:
                rows |= {(place, shape): measured(bench, program, place, path, shape) for shape in shapes}
    return told(rows)


def told(all_rows):
    lines = []
    for measure, title, text in MEASURES:
        lines += [f"**{title}**", "", "| file | | turns of each way | off | on | auto | auto beside the faster of both | error of that |",
                  "| --- | --- | --- | --- | --- | --- | --- | --- |"]
        for (place, shape), rows in all_rows.items():
            parts = sums(rows)
            ratio, error = beside_better(parts, measure)
            # Of rates it is the other way round.
            ratio = 1 / ratio if measure == "seconds" else ratio
            cells = " | ".join(text(trimmed([part[way, measure] for part in parts])[0]) for way in WAYS)
            lines.append(f"| {place} | {name(shape)} | {len(parts) * ORDERS} | {cells} | {ratio:.4f} | {100 * error:.2f} % |")
        lines.append("")
    lines += ["**What auto did, in each run**", "", "| file | | requests until it had decided | in its turns | decisions | changes of mind | alarms |",
              "| --- | --- | --- | --- | --- | --- | --- |"]
    for (place, shape), rows in all_rows.items():
        until = ", ".join(f"{row['until_decided']}" if row["decided"] else f"not by {row['until_decided']}" for row in rows)
        ways = ", ".join(f"{100 * row['by_way'][0] / max(1, sum(row['by_way'])):.1f} % {row['ways'][0]}" for row in rows)
        counts = " | ".join(", ".join(str(row[what]) for row in rows) for what in ("decisions", "changes", "alarms"))
        lines.append(f"| {place} | {name(shape)} | {until} | {ways} | {counts} |")
    return [*lines, ""]


def name(shape):
    elements, element, depth, _, direction = shape
    return f"{elements} x {element // 1024} KiB {direction}s, depth {depth}"


def linearize(bench):
    return tables(bench, VECTORED)

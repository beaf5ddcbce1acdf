"""Section `linearize`: vectored writes to a real file with linearize off, on and auto, by the leaf crate's own benchmark, in turns.
The share that auto copies says what it costs the processor besides: valgrind cannot run io_uring."""

import json
import re
import statistics
import subprocess

WAYS = ("off", "on", "auto")
# Elements, bytes of one, requests of a timed run.
SHAPES = ((8, 4096, 60_000), (16, 65536, 12_000))
DEPTH = 16


def binary(bench):
    done = subprocess.run(["cargo", "bench", "--quiet", "-p", "blockwork-leaf", "--bench", "linearize", "--no-run",
                           "--message-format=json"], cwd=bench.root, capture_output=True, text=True)
    found = re.findall(r'"executable":"([^"]*linearize-[^"]*)"', done.stdout)
    return found[-1] if found else None


def run(program, path, way, elements, element, requests):
    return [program, f"{path},direct=on", way, str(elements), str(element), str(DEPTH), str(requests), "write"]


def linearize(bench):
    program = binary(bench)
    if not program:
        return ["Skipped: crates/leaf/benches/linearize.rs did not build.", ""]
    path = bench.file("linearize")
    lines = ["| writes, depth 16 | off | on | auto | auto : better of both | copied by auto |", "| --- | --- | --- | --- | --- | --- |"]
    for elements, element, requests in SHAPES:
        title = f"{elements} x {element // 1024} KiB"
        rows = []
        for rep in range(bench.reps):
            for way in WAYS:
                command = run(program, path, way, elements, element, requests // (10 if bench.quick else 1))
                measure = lambda: json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
                row = bench.keep_row({"shape": title, "way": way, "rep": rep, **bench.quietly(measure)})
                rows.append({**row, "rate": row["requests"] / row["seconds"]})
        rate = {way: statistics.median(row["rate"] for row in rows if row["way"] == way) for way in WAYS}
        ratio = statistics.median(
            next(row["rate"] for row in rows if (row["rep"], row["way"]) == (rep, "auto"))
            / max(row["rate"] for row in rows if row["rep"] == rep and row["way"] != "auto")
            for rep in range(bench.reps))
        share = statistics.median(row["copied"] / row["requests"] for row in rows if row["way"] == "auto")
        cells = " | ".join(f"{rate[way]:.0f}/s" for way in WAYS)
        lines.append(f"| {title} | {cells} | {ratio:.3f} | {100 * share:.1f} % |")
    return [*lines, ""]

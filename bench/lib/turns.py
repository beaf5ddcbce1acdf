"""Section `linearize`: vectored writes to a real file with linearize off, on and auto, by the leaf crate's own benchmark, in short turns.
The first half of the turns is auto's to find out; both halves are told. The share that auto copies says what it costs the processor
besides; what deciding costs, in instructions, is in section `instructions`: valgrind cannot run io_uring."""

import json
import re
import statistics
import subprocess

WAYS = ("off", "on", "auto")
# Elements, bytes of one, requests of each way.
SHAPES = ((8, 4096, 240_000), (16, 65536, 24_000))
DEPTH = 16
ROUNDS = 48


def binary(bench):
    done = subprocess.run(["cargo", "bench", "--quiet", "-p", "blockwork-leaf", "--bench", "linearize", "--no-run",
                           "--message-format=json"], cwd=bench.root, capture_output=True, text=True)
    found = re.findall(r'"executable":"([^"]*linearize-[^"]*)"', done.stdout)
    return found[-1] if found else None


def rate(row, way, requests, half):
    """Requests a second in one half of the turns."""
    turns = row[way][half * ROUNDS // 2:(half + 1) * ROUNDS // 2]
    return requests / ROUNDS * len(turns) / sum(turns)


def linearize(bench):
    program = binary(bench)
    if not program:
        return ["Skipped: crates/leaf/benches/linearize.rs did not build.", ""]
    path = bench.file("linearize")
    lines = ["| writes, depth 16 | turns | off | on | auto | auto : better of both | copied by auto |",
             "| --- | --- | --- | --- | --- | --- | --- |"]
    for elements, element, requests in SHAPES:
        title = f"{elements} x {element // 1024} KiB"
        requests = requests // (10 if bench.quick else 1)
        command = [program, f"{path},direct=on", *map(str, (elements, element, DEPTH, requests, ROUNDS)), "write"]
        measure = lambda: json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)  # noqa: B023
        rows = [bench.keep_row({"shape": title, "rep": rep, **bench.quietly(measure)}) for rep in range(bench.reps)]
        share = statistics.median(row["copied"] for row in rows)
        for half, name in enumerate(("first half", "second half")):
            rates = {way: statistics.median(rate(row, way, requests, half) for row in rows) for way in WAYS}
            # The better way by all rounds: the larger of two single figures would be what chance has favoured.
            ratio = rates["auto"] / max(rates["off"], rates["on"])
            cells = " | ".join(f"{rates[way]:.0f}/s" for way in WAYS)
            lines.append(f"| {title} | {name} | {cells} | {ratio:.3f} | {100 * share:.1f} % |")
    return [*lines, ""]

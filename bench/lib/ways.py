"""Sections `fixed` and `io`: one way of doing I/O against another, by servers that differ in that alone. Each has a file of its own and
runs all the time, so that what `auto` has found out stays; they take turns in each cell. A disk varies more than registered buffers are worth: so
`fixed` is told by short turns on one file besides, without a server."""

from . import machine, turns
from .tables import errors, median, show

WAYS = ("fixed=off", "fixed=on", "fixed=auto")
THREADS = ("--io io_uring", "--io threads")


def measure(bench, disk, started, cells):
    rows = []
    running = [server for server in started if server]
    for rep in range(bench.reps):
        for cell in cells:
            for server in running:
                load = (server, cell["rw"], cell["bs"], cell["depth"], 1, bench.seconds)
                rows.append(bench.row({"disk": disk, **cell}, server.name, "nbdload", rep, lambda: bench.nbdload(*load)))
    return rows


def ways_table(title, rows, names, value):
    """A line for each cell: the first way, and the others beside it."""
    first, *others = names
    lines = [f"**{title}**", "", "| disk | rw | bs | depth | " + " | ".join(names) + " | " + " | ".join(f"{name} : {first}" for name in others)
             + " |", "|" + " --- |" * (4 + len(names) + len(others))]
    for disk, rw, bs, depth in dict.fromkeys((row["disk"], row["rw"], row["bs"], row["depth"]) for row in rows):
        values = {name: median(rows, value, peer=name, disk=disk, rw=rw, bs=bs, depth=depth) for name in names}
        ratios = [f"{values[name] / values[first]:.2f}" if values[name] and values[first] else "" for name in others]
        lines.append("| " + " | ".join([disk, rw, bs, str(depth), *(show(values[name]) for name in names), *ratios]) + " |")
    return lines + [""]


def result(bench, rows, names):
    return [*ways_table("Server CPU, us per I/O", rows, names, "server_us"), *ways_table("IOPS", rows, names, "iops"),
            *ways_table("p50, us", rows, names, "p50_us"), machine.noise(rows), "", *errors(rows)]


def fixed(bench):
    if not bench.nbdload:
        return ["Skipped: nbdload is not there (--build builds it).", ""]
    cells = [{"rw": rw, "bs": bs, "depth": depth} for bs, depth in (("4k", 32), ("64k", 16)) for rw in ("randread", "randwrite")]
    with bench.starter() as starter:
        started = [starter.blockwork_nbd(way, f"{bench.file(way.replace('=', '-'))},direct=on,{way}", "--workers", "1") for way in WAYS]
        rows = measure(bench, "file", started, cells)
    return turns.tables(bench, turns.ALONE) + result(bench, rows, WAYS)


def io(bench):
    if not bench.nbdload:
        return ["Skipped: nbdload is not there (--build builds it).", ""]
    cells = [{"rw": rw, "bs": bs, "depth": depth} for bs, depth in (("4k", 1), ("4k", 32), ("64k", 16)) for rw in ("randread", "randwrite")]
    rows = []
    for disk in ("null", "file"):
        with bench.starter() as starter:
            where = [f"{bench.file(way.split()[-1])},direct=on" if disk == "file" else "null:4G" for way in THREADS]
            started = [starter.blockwork_nbd(way, path, *way.split(), "--workers", "1") for way, path in zip(THREADS, where)]
            rows += measure(bench, disk, started, cells)
    return result(bench, rows, THREADS)

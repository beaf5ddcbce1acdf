"""Section `counts`: numbers that depend least on the machine's mood. System calls per I/O, and the reads a disk sees
when a file is read sequentially in small pieces."""

from . import loads, machine, servers
from .tables import OURS, errors, table

READ_AHEAD_KB = 1024


def counts(bench):
    if not bench.nbdload:
        return ["Skipped: nbdload is not built.", ""]
    return syscalls(bench) + device_reads(bench)


def syscalls(bench):
    if not (machine.has("perf") and machine.is_root()):
        return ["System calls: skipped, needs root and perf.", ""]
    rows = []
    for disk in ("null", "file"):
        with bench.starter() as starter:
            started = loads.start_null(starter) if disk == "null" else loads.start_file(starter, bench)
            for rep in range(bench.reps):
                for rw in ("randread", "randwrite"):
                    for server in filter(None, started):
                        row = bench.nbdload(server, rw, "4k", 32, 1, bench.seconds, ["--syscalls"])
                        rows.append({"disk": disk, "rw": rw, "depth": 32, "peer": server.name, "rep": rep, **row})
    return table("System calls per 4 KiB I/O, one connection", rows, ["disk", "rw", "depth"],
                 [OURS, "qsd", "nbdkit"], "syscalls", min) + errors(rows)


def start_readers(starter, bench):
    path = bench.file("sequential")
    return [
        starter.blockwork_nbd(OURS, path),
        starter.blockwork_nbd(f"{OURS} read_ahead_kb={READ_AHEAD_KB}", path, "--read-only",
                              "--set", f"read_ahead_kb={READ_AHEAD_KB}"),
        starter.qsd_nbd("qsd", servers.qsd_file(path) + ",read-only=off,locking=off"),
        starter.nbdkit("nbdkit", "file", path),
    ]


def device_reads(bench):
    disk = machine.Disk(bench.data)
    if not (machine.is_root() and disk.known()):
        return ["Device reads: skipped, needs root and a disk with statistics in /sys/block.", ""]
    total = min(512 << 20, bench.file_bytes)
    rows = []
    for rep in range(bench.reps):
        for depth in (32, 1):
            rows += read_once(bench, disk, depth, total, rep)
    names = list(dict.fromkeys(row["peer"] for row in rows))
    pieces = total // 4096
    title = f"Reads that {disk.name} saw for {total >> 20} MiB in {pieces} pieces of 4 KiB"
    lines = table(title, rows, ["depth"], names, "device_reads", min, ["qsd"])
    lines += table("KiB per device read", rows, ["depth"], names, "kib_per_read", max, ["qsd"])
    lines += table("MiB/s (page cache dropped before)", rows, ["depth"], names, "mibps", max, ["qsd"])
    return lines + ["(nbdkit reads through the page cache; the others with O_DIRECT.)", ""] + errors(rows)


def read_once(bench, disk, depth, total, rep):
    """Each server in turn, alone: two at once on one file might lock each other out."""
    rows = []
    for which in range(4):
        with bench.starter() as starter:
            server = start_readers(OneOf(starter, which), bench)[which]
            if not server:
                continue
            machine.drop_caches()
            before = disk.reads()
            row = bench.nbdload(server, "read", "4k", depth, 1, extra=["--bytes", str(total)])
            after = disk.reads()
        requests, sectors = after[0] - before[0], after[1] - before[1]
        rows.append({"peer": server.name, "depth": depth, "rep": rep, "device_reads": requests,
                     "kib_per_read": sectors / 2 / max(1, requests), **row})
    return rows


class OneOf:
    """A starter that starts only its n-th server."""

    def __init__(self, starter, which):
        self.starter, self.left = starter, which

    def __getattr__(self, name):
        def start(*arguments):
            self.left -= 1
            return getattr(self.starter, name)(*arguments) if self.left == -1 else None
        return start

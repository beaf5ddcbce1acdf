"""Sections `nbd` (4 KiB random), `seq` (1 MiB sequential) and `copy` (a disk read by nbdcopy): every server, every client, interleaved."""

import os

from . import clients, machine, servers
from .tables import OURS, errors, table

NULL_BYTES = 4 << 30
# What nbdcopy asks for at a time: its default, and what copies are made by elsewhere.
REQUESTS = {"256 KiB": 256 << 10, "1 MiB": 1 << 20}
RAW = "raw fio"
# The same server, told to look for completions before it sleeps.
POLLING = f"{OURS} --poll 50"
TITLES = {"null": "Null disk that sends its bytes", "file": "File with O_DIRECT (nbdkit: through the page cache)"}


def start_null(starter):
    size = str(NULL_BYTES)
    return [
        starter.blockwork_nbd(OURS, "null:4G"),
        starter.blockwork_nbd(POLLING, "null:4G", "--poll", "50"),
        starter.qsd_nbd("qsd", servers.qsd_null(size)),
        starter.nbdkit("nbdkit", "null", f"size={size}"),
    ]


def start_file(starter, bench):
    # A file each: qemu locks its own, and one's write-back must not fall on another.
    return [
        starter.blockwork_nbd(OURS, bench.file("blockwork")),
        starter.blockwork_nbd(POLLING, bench.file("polling"), "--poll", "50"),
        starter.qsd_nbd("qsd", servers.qsd_file(bench.file("qsd"))),
        starter.nbdkit("nbdkit", "file", bench.file("nbdkit")),
    ]


def measure_cell(bench, running, cell, rep, with_raw, with_syscalls):
    """All servers with all clients, one after the other, for one cell of the table."""
    rw, bs, depth, connections = cell["rw"], cell["bs"], cell["depth"], cell["connections"]
    for server in running:
        for client in bench.nbd_clients():
            def once():
                load = clients.fio_nbd if client == "fio" else bench.nbdload
                return load(server, rw, bs, depth, connections, bench.seconds)
            yield bench.row(cell, server.name, client, rep, once)
        if with_syscalls and bench.nbdload:
            # Counted apart: tracing slows the server down.
            counted = bench.nbdload(server, rw, bs, depth, connections, min(bench.seconds, 0.5), ["--syscalls"])
            yield {**cell, "peer": server.name, "client": "nbdload", "rep": rep, "syscalls": counted.get("syscalls"),
                   "error": counted.get("error")}
        if "write" in rw:
            # Dirty pages of a buffered server would else be written during the next one's turn.
            os.sync()
    if with_raw:
        path = bench.file("raw")

        def raw():
            return clients.fio_file(path, rw, bs, depth, connections, bench.seconds)
        yield bench.row(cell, RAW, "fio", rep, raw)


def measure(bench, cells, with_syscalls):
    rows = []
    for disk in ("null", "file"):
        with bench.starter() as starter:
            started = start_null(starter) if disk == "null" else start_file(starter, bench)
            running = [server for server in started if server]
            for rep in range(bench.reps):
                for cell in cells:
                    cell = {"disk": disk, **cell}
                    with_raw = disk == "file" and machine.has("fio")
                    rows += measure_cell(bench, running, cell, rep, with_raw, with_syscalls and rep == 0)
    return rows


def tables_of(rows, keys, metrics):
    lines = []
    for disk in ("null", "file"):
        of_disk = [row for row in rows if row["disk"] == disk]
        lines += [f"### {TITLES[disk]}", ""]
        for client in ("nbdload", "fio"):
            chosen = [row for row in of_disk if row["client"] == client or row["peer"] == RAW]
            for title, value, better, rivals in metrics:
                columns = [OURS, POLLING, "qsd", "nbdkit", RAW]
                if rivals == [RAW]:
                    columns = [OURS, POLLING, RAW]
                    if disk == "null" or not any(row["peer"] == OURS for row in chosen):
                        continue
                lines += table(f"{title}, client {client}", chosen, keys, columns, value, better, rivals)
    return lines


def nbd(bench):
    depths = (1, 32) if bench.quick else (1, 32, 128)
    cells = [{"rw": rw, "bs": "4k", "connections": connections, "depth": depth}
             for rw in ("randread", "randwrite") for connections in (1, 4) for depth in depths]
    rows = measure(bench, cells, with_syscalls=machine.has("perf") and machine.is_root())
    peers = ["qsd", "nbdkit"]
    lines = tables_of(rows, ["rw", "connections", "depth"], [
        ("IOPS", "iops", max, peers),
        ("IOPS against raw fio", "iops", max, [RAW]),
        ("Server CPU, us per I/O", "server_us", min, peers),
        ("Server system calls per I/O", "syscalls", min, peers),
        ("p50, us", "p50_us", min, peers),
    ])
    for client in ("nbdload", "fio"):
        of_client = [row for row in rows if row["disk"] == "null" and row["client"] == client]
        lines += table(f"The client's own CPU ({client}, null disk), us per I/O", of_client,
                       ["rw", "connections", "depth"], [OURS, *peers], "client_us", min)
    return lines + [machine.noise(rows), ""] + errors(rows)


def seq(bench):
    cells = [{"rw": rw, "bs": "1m", "connections": 1, "depth": 16} for rw in ("read", "write")]
    rows = measure(bench, cells, with_syscalls=False)
    lines = tables_of(rows, ["rw", "depth"], [
        ("1 MiB sequential, MiB/s", "mibps", max, ["qsd", "nbdkit"]),
        ("Server CPU, us per 1 MiB", "server_us", min, ["qsd", "nbdkit"]),
    ])
    return lines + [machine.noise(rows), ""] + errors(rows)


def copy(bench):
    if not machine.has("nbdcopy"):
        return ["nbdcopy is not there (libnbd-bin)."]
    rows = []
    cells = [{"connections": connections, "request": request}
             for connections in (1, 4, 8) for request in ("256 KiB", "1 MiB")]
    with bench.starter() as starter:
        # nbdkit would read the file from memory after the first time.
        both = [starter.blockwork_nbd(OURS, bench.file("blockwork")), starter.qsd_nbd("qsd", servers.qsd_file(bench.file("qsd")))]
        running = [server for server in both if server]
        for rep in range(bench.reps):
            for cell in cells:
                for server in running:
                    def once():
                        return clients.nbdcopy(server, bench.file_bytes, cell["connections"], REQUESTS[cell["request"]])
                    rows.append(bench.row(cell, server.name, "nbdcopy", rep, once))
    lines = []
    for title, value, better in (("MiB/s", "mibps", max), ("Server CPU, us per MiB", "server_us", min)):
        lines += table(title, rows, ["connections", "request"], [OURS, "qsd"], value, better)
    return lines + [machine.noise(rows), ""] + errors(rows)

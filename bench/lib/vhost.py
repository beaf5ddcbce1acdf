"""Sections `vhost` and `pages`: rings of guests (vhost-user-blk), ours beside qemu-storage-daemon's and, for files, fio with io_uring on the file itself.

The client is `vhostload`, which sleeps between answers as a guest does, or looks for them (`polling`). On the null disk the kernel places
server and guest, and in a second table each has a processor of its own."""

import json
import os
import subprocess

from . import clients, machine, servers
from .tables import OURS, errors, median, show, table

QSD = "qsd"
RAW = "raw fio"
RAW_BATCHES = "raw fio, in batches"
# Back ends that are nothing but a back end, by how they wait.
BARE = {"bare, asleep": "sleeps", "bare, looking": "looks"}
# The same with a file; the last hands reads to the kernel four at a time. They only read, and the kernel places them.
BARE_FILE = {"bare, asleep": [], "bare, looking": ["--looks"], "bare, in fours": ["--portion", "4"]}
# Where the server and the guest run, if not where the kernel places them.
SERVER_AT, GUEST_AT = (["taskset", "-c", cpu] for cpu in "01")
NULL_DEPTHS = (1, 16, 32, 64, 128, 256, 512, 1024)
WRITTEN_DEPTHS = (64, 128, 256, 512, 1024)
FILE_DEPTHS = (1, 32, 128)
RINGS = (32, 64, 128, 256)
QUEUES = (1, 2, 4)
# Processors of the server and of the guest, where reads of a file are measured by these: a single one under way, and more with a processor each.
EACH = ("0 and 1", "1 and 0")
PLACES = ("0 and 0", "1 and 1", *EACH)
QUEUES_MAX = max(QUEUES)
# Of reads that are nearly all the server's work: a memory disk, which fills them.
LARGE = {"bs": 4 << 20, "depth": 4}
# Requests by guests whose memory has been there for a while, as it is and gathered in huge pages: bytes, and how many are under way.
HUGE = "blockwork, huge pages"
# A guest whose memory was registered with io_uring once: `--guest-memory pinned`.
KNOWN = "blockwork, pinned"
SIZES = ((1 << 20, 8), (1 << 20, 64), (256 << 10, 16), (64 << 10, 32), (4096, 32))
NULL_BYTES = 4 << 30
DELAY_MS = 1
EVENTS = {"raw_syscalls:sys_enter": "syscalls", "syscalls:sys_enter_io_uring_enter": "enters"}


def start_ours(starter, at, *disk, name="blockwork-vhost", peer=OURS):
    sock, log = starter.paths(name)
    command = [*at, starter.blockwork, "serve", *disk, "--vhost-user", sock, "--queues", str(QUEUES_MAX)]
    make = lambda: servers.Server(peer, command, log, sock).wait_for_ready_line()  # noqa: E731
    return starter.start(peer, starter.blockwork, make)


def start_qsd(starter, at, blockdev):
    sock, log = starter.paths("qsd-vhost")
    command = [*at, "qemu-storage-daemon", "--blockdev", blockdev, "--export",
               f"type=vhost-user-blk,id=e0,node-name=n0,addr.type=unix,addr.path={sock},writable=on,num-queues={QUEUES_MAX}"]
    make = lambda: servers.Server(QSD, command, log, sock).wait_for(lambda: os.path.exists(sock))  # noqa: E731
    return starter.start(QSD, "qemu-storage-daemon", make)


def guest_at(server, cell):
    """Moves the server, too, where the cell says where both are to be."""
    if "places" not in cell:
        return GUEST_AT if cell["kind"] == "pinned" else []
    servers_cpu, _ = cell["places"].split(" and ")
    subprocess.run(["taskset", "--all-tasks", "--cpu-list", "--pid", servers_cpu, str(server.pid)], check=True, capture_output=True)
    return raw_at(cell)


def raw_at(cell):
    """A program that reads the file itself is where the guest would be."""
    return ["taskset", "-c", cell["places"].split(" and ")[1]] if "places" in cell else []


def load(bench, server, cell, seconds):
    options = ["--rw", cell.get("rw", "randread"), "--depth", str(cell["depth"]), "--queue-size", str(cell["ring"]),
               "--queues", str(cell.get("queues", 1)), "--bs", str(cell.get("bs", 4096)), "--rest", str(cell.get("rest", 0)),
               *(["--poll"] if cell["guest"] == "polling" else [])]
    return clients.vhostload(bench.vhostload, server.sock, server.pid, seconds, options, guest_at(server, cell))


def load_bare(bench, waits, cell, delay_us=0):
    command = [bench.vhostload, "--bare", waits, "--delay", str(delay_us), "--seconds", str(bench.seconds), "--depth", str(cell["depth"]),
               "--queue-size", str(cell["ring"]), *(["--poll"] if cell["guest"] == "polling" else [])]
    return row_of_bare(command)


def load_bare_file(bench, path, how, cell):
    return row_of_bare([bench.bare_ring, path, "--depth", str(cell["depth"]), "--seconds", str(bench.seconds), *how])


def row_of_bare(command):
    report, error = clients.run(command)
    if error or report is None:
        return {"error": error}
    return {"iops": report["iops"], "p50_us": report["p50_us"], "server_us": report["server_cpu_us_per_io"]}


def count(bench, server, cell):
    """System calls of the server's per I/O. Counted apart: tracing slows it down."""
    output = f"{bench.run_folder}/perf"
    command = ["perf", "stat", "-x", ",", "-o", output, "-e", ",".join(EVENTS), "-p", str(server.pid), "--",
               bench.vhostload, "--socket", server.sock, "--seconds", "0.5", "--depth", str(cell["depth"]),
               "--queue-size", str(cell["ring"]), "--rw", cell.get("rw", "randread")]
    report, error = clients.run(command)
    if error or report is None:
        return {"error": error}
    with open(output) as file:
        fields = [line.split(",") for line in file if "," in line]
    counts = {event: float(line[0]) for line in fields for event in EVENTS if event in line and line[0].isdigit()}
    return {EVENTS[event]: counted / report["requests"] for event, counted in counts.items()}


def cell_of(kind, depth, ring=None, **more):
    return {"kind": kind, "guest": "sleeping", "depth": depth, "ring": ring or max(128, depth), **more}


def in_turns(bench, running, cells, with_counts, extra):
    """All servers for each cell; in the first round also their system calls."""
    rows = []
    for rep in range(bench.reps):
        for cell in cells:
            for server in running:
                rows.append(bench.row(cell, server.name, "vhostload", rep, lambda: load(bench, server, cell, bench.seconds)))
                if rep == 0 and with_counts and cell["guest"] == "sleeping":
                    rows.append({**cell, "peer": server.name, "rep": rep, **count(bench, server, cell)})
            for peer, client, run in extra:
                rows.append(bench.row(cell, peer, client, rep, lambda: run(cell)))
    return rows


def measure(bench, kind, ours, blockdev, cells, with_counts=False, extra=(), known=False):
    with bench.starter() as starter:
        at = SERVER_AT if kind == "pinned" else []
        started = [start_ours(starter, at, *ours), start_qsd(starter, at, blockdev)]
        if known:
            started.append(start_ours(starter, at, *ours, "--guest-memory", "pinned", name="blockwork-vhost-known", peer=KNOWN))
        running = [server for server in started if server]
        rows = in_turns(bench, running, cells, with_counts, extra)
        idle = cell_of(f"{kind} idle", 0)
        for server in running:
            rows.append(bench.row(idle, server.name, "vhostload", 0, lambda: load(bench, server, idle, 2)))
    return rows


def measure_workers(bench):
    """As many queues as processors, over 1, 2, ... workers, where what there is to do is the server's."""
    most = os.cpu_count()
    rows = []
    with bench.starter() as starter:
        started = {workers: start_ours(starter, [], "--disk", "memory:1G", "--workers", str(workers), name=f"blockwork-vhost-{workers}")
                   for workers in range(1, most + 1)}
        for rep in range(bench.reps):
            for workers, server in started.items():
                cell = {**cell_of("workers", LARGE["depth"], bs=LARGE["bs"], queues=most), "workers": workers}
                rows.append(bench.row(cell, server.name, "vhostload", rep, lambda: load(bench, server, cell, bench.seconds)))
    return rows


def workers_table(rows):
    """The rates, and what each processor that the server took has done."""
    lines = [f"**Reads of {LARGE['bs'] >> 20} MiB from memory, {os.cpu_count()} queues, {LARGE['depth']} in flight in each**", "",
             "| workers | reads per second | against one worker | processors taken | reads per second of one | against one worker |",
             "|" + " --- |" * 6]
    of = lambda workers: [median(rows, value, kind="workers", workers=workers) for value in ("iops", "share")]  # noqa: E731
    first = of(1)
    for workers in range(1, os.cpu_count() + 1):
        rate, share = of(workers)
        if not (rate and share and all(first)):
            continue
        each = rate / share
        lines.append(f"| {workers} | {show(rate)} | {rate / first[0]:.2f} | {share:.2f} | {show(each)} | {each * first[1] / first[0]:.2f} |")
    return lines + [""]


def pages(bench):
    """Reads of several sizes, by guests whose memory has been there for a while."""
    if not machine.has(bench.vhostload):
        return ["Skipped: vhostload is not built.", ""]
    path = bench.file("raw")
    ours = ["--disk", f"{path},direct=on,lock=off"]
    with bench.starter() as starter:
        started = [start_ours(starter, [], *ours), start_qsd(starter, [], f"{servers.qsd_file(path)},locking=off"),
                   start_ours(starter, [], *ours, "--guest-memory", "huge", name="blockwork-vhost-huge", peer=HUGE)]
        cells = [cell_of("pages", depth, rw="randread", bs=size, rest=5) for size, depth in SIZES]
        rows = in_turns(bench, [server for server in started if server], cells, False, ())
    keys = ["bs", "depth"]
    lines = table("Random reads per second of a file with O_DIRECT", rows, keys, [HUGE, OURS, QSD], "iops", max, [QSD])
    lines += table("Server CPU, us per read", rows, keys, [HUGE, OURS, QSD], "server_us", min, [QSD])
    return lines + [machine.noise(rows), ""] + errors(rows)


def slow_table(bench):
    path = f"{bench.run_folder}/slow.table"
    with open(path, "w") as file:
        file.write(f"0 {NULL_BYTES // 512} delay null:{NULL_BYTES} 0 {DELAY_MS}\n")
    return path


def vhost(bench):
    if not machine.has(bench.vhostload):
        return ["Skipped: vhostload is not built.", ""]
    counted = machine.has("perf") and machine.is_root()
    null = f"driver=null-co,node-name=n0,size={NULL_BYTES},read-zeroes=on"
    null_cells = lambda kind: ([cell_of(kind, depth) for depth in NULL_DEPTHS]  # noqa: E731
                               + [{**cell_of(kind, depth), "guest": "polling"} for depth in (1, 32)])
    queues = [cell_of("queues", 32, queues=queues) for queues in QUEUES]
    bare = [(peer, "vhostload", lambda cell, waits=waits: load_bare(bench, waits, cell)) for peer, waits in BARE.items()]
    disk = ["--disk", f"null:{NULL_BYTES}", "--workers", str(QUEUES_MAX)]
    rows = measure(bench, "null", disk, null, null_cells("null"), counted, bare)
    if os.cpu_count() > 1 and machine.has("taskset"):
        rows += measure(bench, "pinned", disk, null, null_cells("pinned"))
    # A read from a null disk fills 4 KiB with zeros: with many under way they are out of the processor's caches by then. A write touches nothing.
    rows += measure(bench, "written", disk, null, [cell_of("written", depth, rw="randwrite") for depth in WRITTEN_DEPTHS])
    rows += measure(bench, "queues", disk, null, queues)
    rows += measure_workers(bench)

    slow = [cell_of("slow", ring, ring) for ring in RINGS]
    delayed = f"{null},latency-ns={DELAY_MS * 1000000}"
    looking = ("bare, looking", "vhostload", lambda cell: load_bare(bench, "looks", cell, DELAY_MS * 1000))
    rows += measure(bench, "slow", ["--table", slow_table(bench)], delayed, slow, extra=[looking])

    path = bench.file("raw")
    cells = lambda rw: [cell_of("file", depth, rw=rw) for depth in FILE_DEPTHS]  # noqa: E731
    raw = lambda cell: clients.fio_file(path, cell["rw"], "4k", cell["depth"], 1, bench.seconds, at=raw_at(cell))  # noqa: E731
    batches = lambda cell: clients.fio_file_in_batches(path, cell["rw"], "4k", cell["depth"], bench.seconds, raw_at(cell))  # noqa: E731
    beside = [(RAW, "fio", raw), (RAW_BATCHES, "fio", batches)] if machine.has("fio") else []
    if not machine.has(bench.bare_ring):
        bench.notes.append(f"no bare back end with a file: {bench.bare_ring} is not there; --build builds it")
    reading = [(peer, "bare_ring", lambda cell, how=how: load_bare_file(bench, path, how, cell))
               for peer, how in BARE_FILE.items() if machine.has(bench.bare_ring)]
    # One file for all, one after the other: where it lies on the disk decides.
    ours, blockdev = ["--disk", f"{path},direct=on,lock=off"], f"{servers.qsd_file(path)},locking=off"
    rows += measure(bench, "file", ours, blockdev, cells("randread"), counted, beside + reading, known=True)
    rows += measure(bench, "file", ours, blockdev, cells("randwrite"), counted, beside, known=True)
    if os.cpu_count() > 1 and machine.has("taskset"):
        placed = [(1, places) for places in PLACES] + [(depth, places) for depth in FILE_DEPTHS[1:] for places in EACH]
        cells = [cell_of("placed", depth, places=places, rw="randread") for depth, places in placed]
        rows += measure(bench, "placed", ours, blockdev, cells, extra=beside)
    return tables_of(rows) + goals(rows) + least(bench) + [machine.noise(rows), ""] + errors(rows)


def least(bench):
    """What a kick and a call alone take here."""
    program = os.path.join(os.path.dirname(bench.vhostload), "vhostbound")
    if not machine.has(program):
        return []
    done = subprocess.run([program], capture_output=True, text=True)
    if done.returncode:
        return [f"- kick and call alone were not measured: {done.stderr.strip()}", ""]
    took = json.loads(done.stdout)
    return ["**A kick and a call by eventfd and nothing between them, us**", "",
            "| both sleep | the back end looks, the guest is asleep | the back end looks, the guest falls asleep | both look |",
            "| --- | --- | --- | --- |",
            f"| {took['both_sleep_us']:.1f} | {took['guest_asleep_us']:.1f} | {took['back_end_looks_us']:.1f} | {took['both_look_us']:.2f} |",
            ""]


def tables_of(rows):
    of = lambda *kinds: [row for row in rows if row["kind"] in kinds]  # noqa: E731
    lines = ["### Null disk, 4 KiB touched; a ring as large as the depth, at least 128", ""]
    null, keys, peers = of("null"), ["guest", "depth"], [OURS, QSD, *BARE]
    lines += table("I/O per second", null, keys, peers, "iops", max, [QSD])
    lines += table("p50, us", null, keys, peers, "p50_us", min, [QSD])
    lines += table("Server CPU, us per I/O", null, keys, peers, "server_us", min, [QSD])
    lines += table("I/O per second against the better of the bare ones", null, keys, [OURS, *BARE], "iops", max)
    lines += table("Server system calls per I/O", null, ["depth"], [OURS, QSD], "syscalls", min)
    pinned = of("pinned")
    lines += ["### The same, with a processor for the server and one for the guest", ""]
    lines += table("I/O per second", pinned, keys, [OURS, QSD], "iops", max, [QSD])
    lines += table("p50, us", pinned, keys, [OURS, QSD], "p50_us", min, [QSD])
    lines += table("Server CPU, us per I/O", pinned, keys, [OURS, QSD], "server_us", min, [QSD])
    lines += ["### Null disk, written, so that no data is touched: the rings alone", ""]
    lines += table("I/O per second", of("written"), ["depth"], [OURS, QSD], "iops", max)
    lines += ["### Several queues", ""]
    lines += table(f"I/O per second, 32 in flight in each queue, {QUEUES_MAX} workers", of("queues"), ["queues"],
                   [OURS, QSD], "iops", max)
    lines += workers_table(rows)
    file, keys = of("file"), ["rw", "depth"]
    lines += ["### File with O_DIRECT", ""]
    lines += table("I/O per second", file, keys, [OURS, KNOWN, QSD, RAW, RAW_BATCHES], "iops", max, [QSD])
    lines += table("I/O per second against raw fio", file, keys, [OURS, RAW], "iops", max, [RAW])
    lines += table("I/O per second against raw fio that asks as a guest does, in batches", file, keys, [OURS, RAW_BATCHES], "iops", max,
                   [RAW_BATCHES])
    lines += table("p50, us", file, keys, [OURS, KNOWN, QSD, RAW, RAW_BATCHES], "p50_us", min, [QSD])
    lines += table("Server CPU, us per I/O", file, keys, [OURS, KNOWN, QSD], "server_us", min)
    reads = [row for row in file if row["rw"] == "randread"]
    lines += table("Reads per second against the best of the bare ones", reads, ["depth"], [OURS, *BARE_FILE], "iops", max)
    lines += table("Reads, p50, us", reads, ["depth"], [OURS, *BARE_FILE], "p50_us", min)
    lines += table("Reads: processor time of the back end, or of raw fio, us per I/O", with_fios_own(reads), ["depth"], [OURS, *BARE_FILE, RAW],
                   "server_us", min)
    placed = of("placed")
    lines += table("Reads at depth 1, by the processors of server and guest: p50, us", [row for row in placed if row["depth"] == 1], ["places"],
                   [OURS, QSD, RAW], "p50_us", min, [QSD])
    lines += table("Reads per second, by the processors of server and guest", placed, ["places", "depth"], [OURS, QSD, RAW, RAW_BATCHES], "iops",
                   max, [RAW_BATCHES])
    lines += table("Server system calls per I/O", file, keys, [OURS, QSD], "syscalls", min)
    lines += table("io_uring_enter per I/O", file, keys, [OURS, QSD], "enters", min)
    lines += [f"### A disk that takes {DELAY_MS} ms for everything, rings full", ""]
    lines += table("I/O per second", of("slow"), ["ring"], [OURS, QSD, *BARE], "iops", max, [QSD])
    return lines


def with_fios_own(rows):
    """Raw fio has no server: what it takes is its own."""
    return [{**row, "server_us": row["client_us"]} if row["peer"] == RAW and "client_us" in row else row for row in rows]


def null_goals(kind, ours, ratio):
    at = {"null": "null", "pinned": "null, a processor each"}[kind]
    null = {"kind": kind, "guest": "sleeping"}
    rates = [ours("iops", depth=depth, **null) for depth in NULL_DEPTHS]
    return [
        (f"{at}, depth 1, guest sleeping: p50, us", "<= 12", ours("p50_us", depth=1, **null)),
        (f"{at}, depth 1, guest polling: p50, us", "<= 1.95", ours("p50_us", kind=kind, guest="polling", depth=1)),
        (f"{at}, depth 32: CPU per I/O, us", "<= 0.6", ours("server_us", depth=32, **null)),
        (f"{at}, depth 16 and deeper: rate against qsd, worst", ">= 2",
         worst([ratio("iops", QSD, depth=depth, **null) for depth in NULL_DEPTHS[1:]])),
        (f"{at}: a deeper queue's rate against a less deep one's, worst", "1 within noise", worst(falls(rates))),
    ]


def falls(rates):
    """To what share of an earlier rate a deeper queue falls."""
    return [now / max(rates[:nth]) for nth, now in enumerate(rates) if nth > 0 and now and all(rates[:nth])]


def share(one, other):
    return one / other if one and other else None


def worst(values, choose=min):
    values = [value for value in values if value is not None]
    return choose(values) if values else None


def best(rows, value, choose, peers, **match):
    """Of those that are nothing but a back end: what this machine lets any have."""
    return worst([median(rows, value, peer=peer, **match) for peer in peers], choose)


def null_of_the_bare(rows):
    """Of the null disk's goals, what the bare ones reach."""
    def of(peer, depth):
        return median(rows, "iops", kind="null", guest="sleeping", peer=peer, depth=depth)

    shares = [share(worst([of(peer, depth) for peer in BARE], max), of(QSD, depth)) for depth in NULL_DEPTHS[1:]]
    looking = falls([of("bare, looking", depth) for depth in NULL_DEPTHS])
    return [("null, depth 16 and deeper: rate of the better bare back end against qsd, worst", "", worst(shares)),
            ("null: of the bare one that looks, a deeper queue's rate against a less deep one's, worst", "", worst(looking))]


def goals(rows):
    """What issue 7 asks for, beside what came of it."""
    def ours(value, **match):
        return median(rows, value, peer=OURS, **match)

    def ratio(value, peer, **match):
        return share(ours(value, **match), median(rows, value, peer=peer, **match))

    file = {"kind": "file", "rw": "randread"}
    lines = null_goals("null", ours, ratio) + null_goals("pinned", ours, ratio) + null_of_the_bare(rows)
    written = [ours("iops", kind="written", depth=depth) for depth in WRITTEN_DEPTHS]
    lines.append(("null, no data touched: a deeper queue's rate against a less deep one's, worst", "1 within noise", worst(falls(written))))
    slow = [ours("iops", kind="slow", ring=ring) for ring in RINGS]
    idle = worst([ours("share", kind=f"{kind} idle") for kind in ("null", "slow", "file")], max)
    lines += [
        ("file, depth 1: p50, us", "<= 40", ours("p50_us", depth=1, **file)),
        ("the same of raw fio, without a ring", "", median(rows, "p50_us", peer=RAW, depth=1, **file)),
        ("the same of the best bare back end", "", best(rows, "p50_us", min, BARE_FILE, depth=1, **file)),
        ("file, depth 32: CPU per I/O, us", "<= 4", ours("server_us", depth=32, **file)),
        ("the same of raw fio, without a ring", "", median(rows, "client_us", peer=RAW, depth=32, **file)),
        ("the same of the best bare back end", "", best(rows, "server_us", min, BARE_FILE, depth=32, **file)),
        ("file, depth 32: system calls per I/O", "<= 0.3", ours("syscalls", depth=32, **file)),
        ("file, depth 32: io_uring_enter per I/O", "<= 0.1", ours("enters", depth=32, **file)),
        *((f"file, depth {depth}: rate against {peer}", ">= 0.95", ratio("iops", peer, depth=depth, **file))
          for depth in FILE_DEPTHS[1:] for peer in (RAW, RAW_BATCHES)),
        ("file, depth 32: rate of the best bare back end against raw fio", "",
         share(best(rows, "iops", max, BARE_FILE, depth=32, **file), median(rows, "iops", peer=RAW, depth=32, **file))),
        *((f"file, server and guest at {places}, depth {depth}: rate against {peer}", ">= 0.95",
           ratio("iops", peer, depth=depth, kind="placed", places=places))
          for places in EACH for depth in FILE_DEPTHS[1:] for peer in (RAW, RAW_BATCHES)),
        (f"{DELAY_MS} ms, rings of {RINGS[0]} to {RINGS[-1]}: rate * latency / in flight, worst", ">= 0.95",
         worst([iops * DELAY_MS / 1000 / ring for iops, ring in zip(slow, RINGS) if iops])),
        ("idle guest: share of a processor, %", "< 1", None if idle is None else idle * 100),
    ]
    return (["### The goals", "", "| what | goal | reached |", "| --- | --- | --- |"]
            + [f"| {what} | {goal} | {show(value)} |" for what, goal, value in lines] + [""])

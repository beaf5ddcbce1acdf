"""Section `snapshot`: what a snapshot costs. Sequential reads through one of which half has been copied out, beside the plain volume
and the peers' overlays; and first writes to an origin's chunks, beside plain ones, by us and by the kernel in its guest."""

import json
import mmap
import os
import random
import signal
import statistics
import subprocess
import tempfile
import time

from . import clients, machine, servers
from .tables import OURS, median, show, show_ratio

MIB = 1 << 20
READ_BYTES = 512 * MIB
PIECE = 4096
# (start, length) of what has been copied out, half of it all.
PATTERNS = {
    "first half": [(at, MIB) for at in range(0, READ_BYTES // 2, MIB)],
    "every other MiB": [(at, MIB) for at in range(0, READ_BYTES, 2 * MIB)],
    "every other chunk": [(at, PIECE) for at in range(0, READ_BYTES, 2 * PIECE)],
}
PLAIN, SNAPSHOT, QSD, NBDKIT = "plain volume", "snapshot", "qsd, qcow2 overlay", "nbdkit, cow filter"
PEERS = [PLAIN, SNAPSHOT, QSD, NBDKIT]
BARE_READER = "bare reader"

# Pairs of turns for each repetition.
TURNS = 4
# How long a turn of rewrites takes, s.
REWRITES_SECONDS = 0.5

ORIGIN_BYTES = 64 * MIB
# chunk in KiB, rw, depth, bytes: one by one, a quarter of it does, since each first write then waits for two flushes.
CELLS = [(chunk, rw, depth, size * MIB // (1 if depth > 1 else 4)) for chunk, size in ((4, 8), (32, 32)) for depth in (1, 32)
         for rw in ("write", "randwrite")]
KERNEL, BARE_COPIER = "kernel", "bare copier"
# How long the guest may take for all cells: it is emulated, and needs half a minute to boot.
GUEST_SECONDS = 240
READS_GOAL, AGAIN_GOAL, FIRST_GOAL, REQUESTS_GOAL = 0.97, 0.95, 2, 2100


def snapshot(bench):
    if not bench.nbdload or not machine.has("fio"):
        return ["Skipped: needs nbdload (--build) and fio.", ""]
    return reads(bench) + copy_outs(bench)


def named(path, size):
    """A file that has been written once, so that no write of it has to find room."""
    if not os.path.exists(path) or os.stat(path).st_size != size:
        with open(path, "wb") as file:
            block = os.urandom(MIB)
            for _ in range(size // MIB):
                file.write(block)
            os.fsync(file.fileno())
    return path


def empty_store(path, size):
    named(path, size)
    with open(path, "r+b") as store:
        store.write(bytes(PIECE))
        os.fsync(store.fileno())
    return path


def serve_table(starter, bench, table, *names):
    """A server of a table; its statistics are in its log once it has ended."""
    path = f"{bench.run_folder}/stack.table"
    with open(path, "w") as file:
        file.write(table)
    sock, log = starter.paths(OURS)
    command = [bench.blockwork, "serve", "--stats", "--json", "--table", path, "--nbd", f"unix:{sock}", *names]
    return starter.start(OURS, bench.blockwork, lambda: servers.Server(OURS, command, log, sock).wait_for_ready_line())


def statistics_in(log_path):
    """All that a server of ours has printed of them: by leaf, what its queue counted."""
    with open(log_path) as log:
        text = log.read()
    found, at = [], text.find("{")
    while at >= 0:
        nodes, at = json.JSONDecoder().raw_decode(text, at)
        found.append({os.path.basename(node["name"]): node["counters"] for node in nodes["nodes"] if node["kind"] == "leaf"})
        at = text.find("{", at)
    return found


def counted(server):
    """What a server of ours has counted until now."""
    had = len(statistics_in(server.log_path))
    server.process.send_signal(signal.SIGUSR1)

    def printed():
        try:
            return len(statistics_in(server.log_path)) > had
        except json.JSONDecodeError:
            return False
    server.wait_for(printed)
    return statistics_in(server.log_path)[-1]


def since(server, before, counter, *names):
    after = counted(server)
    return sum(after[name][counter] - before[name][counter] for name in names or after)


# Reads.

def read_table(origin, store):
    sectors = READ_BYTES // 512
    return (f"plain: 0 {sectors} linear {origin} 0\norigin: 0 {sectors} snapshot-origin dm/plain\n"
            f"snap: 0 {sectors} snapshot dm/plain {store} P {PIECE // 512}\n")


def overwrite(sock, export, pattern):
    """Writes what a pattern says, over a socket, many at a time."""
    program = f"""
import json, nbd, sys
h = nbd.NBD()
h.connect_uri({f"nbd+unix:///{export}?socket={sock}"!r})
memory = {{}}
for at, length in json.load(sys.stdin):
    memory.setdefault(length, nbd.Buffer.from_bytearray(bytearray(b"x" * length)))
    while h.aio_in_flight() >= 64:
        h.poll(-1)
    h.aio_pwrite(memory[length], at)
while h.aio_in_flight():
    h.poll(-1)
h.flush()
"""
    subprocess.run(["/usr/bin/python3", "-c", program], input=json.dumps(PATTERNS[pattern]), text=True, check=True)


def start_reader(bench, starter, peer, disk, pattern):
    """(server, export) that is ready to be read; what is in memory only is written first. The plain volume and the snapshot are of one server."""
    folder = bench.data
    if peer in (PLAIN, SNAPSHOT):
        # Reads of an origin go straight to the volume.
        exports = {PLAIN: "dm/plain" if disk == "file" else "dm/origin", SNAPSHOT: "dm/snap"}
        files = (f"{folder}/snap-origin.img", f"{folder}/snap-store.img") if disk == "file" else ("null:512M", "null:600M")
        server = serve_table(starter, bench, read_table(*files), *exports.values(), *(["--read-only"] if disk == "file" else []))
        if server and disk == "null":
            overwrite(server.sock, "dm/origin", pattern)
        return server, exports
    if disk == "null":
        return None, {}
    path = f"{folder}/snap-origin.img"
    if peer == QSD:
        file = f"driver=qcow2,node-name=n0,file.driver=file,file.filename={folder}/snap-overlay.qcow2,"
        file += "file.aio=io_uring,file.cache.direct=on,backing.driver=raw,backing.file.driver=file,"
        file += f"backing.file.filename={path},backing.file.aio=io_uring,backing.file.cache.direct=on,backing.file.locking=off"
        return starter.qsd_nbd("qsd", file), {QSD: ""}
    server = starter.nbdkit("nbdkit", "--filter=cow", "file", path)
    if server:
        overwrite(server.sock, "", pattern)
    return server, {NBDKIT: ""}


def copy_out_half(bench, pattern):
    """Makes the files: the origin with its store, and qemu's overlay of the same."""
    origin = named(f"{bench.data}/snap-origin.img", READ_BYTES)
    store = empty_store(f"{bench.data}/snap-store.img", READ_BYTES + 64 * MIB)
    with bench.starter() as starter:
        server = serve_table(starter, bench, read_table(origin, store), "dm/origin", "dm/snap")
        overwrite(server.sock, "dm/origin", pattern)
    overlay = f"{bench.data}/snap-overlay.qcow2"
    made = subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", origin, overlay],
                          capture_output=True, text=True)
    if made.returncode:
        return
    with bench.starter() as starter:
        server, _ = start_reader(bench, starter, QSD, "file", pattern)
        if server:
            overwrite(server.sock, "", pattern)


def read_once(bench, server, export, depth, is_counted):
    """All of it, `depth` requests at a time, so that what can be merged does not vary."""
    before = counted(server) if is_counted else None
    extra = ["--bytes", str(READ_BYTES), "--refill", str(depth), "--export", export]
    row = bench.nbdload(server, "read", "4k", depth, 1, extra=extra)
    if before and not row.get("error"):
        row["requests"] = since(server, before, "reads")
        row["mib"] = since(server, before, "read_bytes") / MIB
    return row


def read_in_turns(bench, disk, pattern, depth):
    """The plain volume and the snapshot by turns, which one first by turns too: half a second each, since what a machine gives changes by more
    from one to the next than the two differ. The peers once a round."""
    rows = []
    cell = {"disk": disk, "copied out": pattern, "depth": depth}
    # One by one takes seconds.
    turns = bench.reps * (TURNS if depth > 1 else 1)
    with bench.starter() as starter:
        server, exports = start_reader(bench, starter, PLAIN, disk, pattern)
        for turn in range(turns if server else 0):
            for peer in [PLAIN, SNAPSHOT][:: 1 if turn % 2 else -1]:
                measure = lambda: read_once(bench, server, exports[peer], depth, turn < bench.reps)  # noqa: E731
                rows.append(bench.row(cell, peer, "nbdload", turn, measure))
    # One by one, the peers would take minutes.
    for peer in (QSD, NBDKIT) if disk == "file" and depth > 1 else ():
        for rep in range(bench.reps):
            with bench.starter() as starter:
                server, exports = start_reader(bench, starter, peer, disk, pattern)
                if server:
                    measure = lambda: read_once(bench, server, exports[peer], depth, False)  # noqa: E731
                    rows.append(bench.row(cell, peer, "nbdload", rep, measure))
    return rows


def fio_reads(jobs):
    """Reads files by io_uring, without any server, all at once; how long that took, ms."""
    command = ["fio", "--output-format=json", "--direct=1", "--ioengine=io_uring", "--readonly"]
    for nth, job in enumerate(jobs):
        command += [f"--name=job{nth}", *job]
    report, error = clients.run(command)
    return None if error or report is None else max(job["read"]["runtime"] for job in report["jobs"])


def bound_of(bench, pattern):
    """What a reader without any server gets of the same extents, by way, as a share of reading one file of that size. Where the pieces are
    small, there are two ways: each by itself, or all of the origin and half of the store, of which a third is read in vain."""
    origin, store = f"{bench.data}/snap-origin.img", f"{bench.data}/snap-store.img"
    half, piece = READ_BYTES // 2, PATTERNS[pattern][0][1]
    large = ["--rw=read", "--bs=512k", "--iodepth=2"]
    spread = [*large, f"--size={half}", f"--filename={origin}"]
    if pattern != "first half":
        spread = [f"--rw=read:{piece // 1024}k", f"--bs={piece // 1024}k", f"--iodepth={2 if piece >= MIB else 128}",
                  f"--io_size={half}", f"--size={READ_BYTES}", f"--filename={origin}"]
    from_store = [*large, f"--size={half}", f"--filename={store}"]
    ways = {"only what is wanted": [spread, from_store]}
    if piece < MIB:
        ways["with the gaps"] = [[*large, f"--size={READ_BYTES}", f"--filename={origin}"], from_store]
    plain = fio_reads([["--rw=read", "--bs=512k", "--iodepth=4", f"--size={READ_BYTES}", f"--filename={origin}"]])
    took = {way: fio_reads(jobs) for way, jobs in ways.items()}
    return {way: plain / ms for way, ms in took.items() if plain and ms}


def reads(bench):
    rows, bounds = [], {}
    for pattern in PATTERNS:
        copy_out_half(bench, pattern)
        for rep in range(bench.reps):
            for way, share in bound_of(bench, pattern).items():
                bounds.setdefault(pattern, {}).setdefault(way, []).append(share)
        for disk in ("file", "null"):
            for depth in (32, 1):
                rows += read_in_turns(bench, disk, pattern, depth)
    keys = ["disk", "copied out", "depth"]
    title = (f"{READ_BYTES // MIB} MiB read in pieces of 4 KiB, MiB/s, and in brackets the share of the plain volume's in the same round "
             f"(medians, with the standard error where there are enough); goal for the snapshot: {READS_GOAL}")
    bounds = {pattern: {way: statistics.median(shares) for way, shares in ways.items()} for pattern, ways in bounds.items()}
    heads = [*keys, *PEERS, BARE_READER]
    lines = [f"**{title}**", "", "| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads)]
    cells = list(dict.fromkeys(tuple(row[key] for key in keys) for row in rows))
    for cell in cells:
        match = dict(zip(keys, cell))
        rates = [show(median(rows, "mibps", peer=peer, **match)) for peer in PEERS]
        shares = [ratio(rows, peer, PLAIN, "mibps", match) for peer in PEERS]
        errors = [error_of(ratios(rows, peer, PLAIN, "mibps", match)) if peer == SNAPSHOT else "" for peer in PEERS]
        values = [f"{rate} ({share:.2f}{error})" if share else "" for rate, share, error in zip(rates, shares, errors)]
        best = max(bounds.get(match["copied out"], {}).values(), default=None)
        values.append(f"({best:.2f})" if best and match["disk"] == "file" and match["depth"] > 1 else "")
        lines.append("| " + " | ".join([*map(str, cell), *values]) + " |")
    said = [f"{pattern}: " + ", ".join(f"{way} {share:.2f}" for way, share in ways.items()) for pattern, ways in bounds.items()]
    lines += ["", f"({BARE_READER}: the same extents of the files read by io_uring without any server, large requests, the better of its ways, as a "
              f"share of one that reads a plain file; medians. {'; '.join(said)}.)"]
    lines += ["", f"**What reached our leaves: requests, MiB; goal for files: {REQUESTS_GOAL} requests**", "", "| " + " | ".join([*keys, PLAIN, SNAPSHOT, "server CPU, us per I/O"]) + " |",
              "|" + " --- |" * (len(keys) + 3)]
    for cell in cells:
        match = dict(zip(keys, cell))
        ours = [f"{median(rows, 'requests', peer=peer, **match):.0f}, {median(rows, 'mib', peer=peer, **match):.0f}"
                for peer in (PLAIN, SNAPSHOT)]
        cpu = [show(median(rows, "server_us", peer=peer, **match)) for peer in (PLAIN, SNAPSHOT)]
        lines.append("| " + " | ".join([*map(str, cell), *ours, ", ".join(cpu)]) + " |")
    return lines + [""]


def error_of(shares):
    """The standard error of their median, by the quartiles."""
    if len(shares) < 8:
        return ""
    low, _, high = statistics.quantiles(shares, n=4)
    return f" ± {1.2533 * (high - low) / 1.349 / len(shares) ** 0.5:.2f}"


def ratio(rows, peer, other, value, match):
    """The median over the rounds of the ratio within a round."""
    shares = ratios(rows, peer, other, value, match)
    return statistics.median(shares) if shares else None


def ratios(rows, peer, other, value, match):
    def values(which):
        return {row["rep"]: row[value] for row in rows
                if row["peer"] == which and row.get(value) and all(row[key] == match[key] for key in match)}
    ours, theirs = values(peer), values(other)
    return [ours[rep] / theirs[rep] for rep in ours if rep in theirs]


# First writes.

def disks_for_writes(folder):
    origin, plain = (named(f"{folder}/copy-{name}.img", ORIGIN_BYTES) for name in ("origin", "plain"))
    return origin, plain, empty_store(f"{folder}/copy-store.img", ORIGIN_BYTES + 16 * MIB)


def fio_writes(server, export, chunk, rw, depth, size, *more):
    """All of `size` once, unless `more` says something else: a chunk is written for the first time only once."""
    report, error = clients.run(["fio", "--name=load", "--output-format=json", "--ioengine=nbd",
                                 f"--uri=nbd+unix:///{export}?socket={server.sock}", f"--bs={chunk}k", f"--rw={rw}",
                                 f"--iodepth={depth}", f"--size={size}", *more])
    return {"error": error} if error or report is None else {"iops": report["jobs"][0]["write"]["iops"]}


def our_writes(bench, folder, medium, rep):
    rows = []
    for chunk, rw, depth, size in CELLS:
        origin, plain, store = disks_for_writes(folder)
        sectors = ORIGIN_BYTES // 512
        table = (f"plain: 0 {sectors} linear {plain} 0\norigin: 0 {sectors} snapshot-origin {origin}\n"
                 f"snap: 0 {sectors} snapshot {origin} {store} P {chunk * 2}\n")
        with bench.starter() as starter:
            server = serve_table(starter, bench, table, "dm/plain", "dm/origin")
            if not server:
                return rows
            cell = {"medium": medium, "chunk": chunk, "rw": rw, "depth": depth, "peer": OURS, "rep": rep}
            for what, export in (("plain", "dm/plain"), ("first", "dm/origin")):
                row = {**cell, "what": what, **fio_writes(server, export, chunk, rw, depth, size)}
                if what == "plain":
                    before = counted(server)
                elif what == "first":
                    writes = size // 1024 // chunk
                    after = counted(server)
                    def each(name, *counters):
                        return sum(after[name][counter] - before[name][counter] for counter in counters) / writes
                    store_name, origin_name = os.path.basename(store), os.path.basename(origin)
                    row["flushes"] = each(store_name, "flushes", "fua_writes")
                    # Of the store: contents and the list; of the origin: what is copied, and the writes themselves.
                    row["store_writes"], row["origin_reads"] = each(store_name, "writes"), each(origin_name, "reads")
                rows.append(bench.keep_row(row))
            rows += rewrites(bench, server, cell, size)
    return rows


def rewrites(bench, server, cell, size):
    """Chunks that have been copied out, beside a plain volume's, by turns, as reads are."""
    rows = []
    for turn in range(TURNS):
        for what, export in [("plain again", "dm/plain"), ("again", "dm/origin")][:: 1 if turn % 2 else -1]:
            written = fio_writes(server, export, cell["chunk"], cell["rw"], cell["depth"], size, "--time_based",
                                 f"--runtime={REWRITES_SECONDS * 1000:.0f}ms")
            rows.append(bench.keep_row({**cell, "turn": turn, "what": what, **written}))
    return rows


def bare_writes(bench, folder, medium, rep):
    """The steps of first writes without client or server: one by one, or a batch's together."""
    rows = []
    for chunk, rw, depth, size in CELLS:
        cell = {"medium": medium, "chunk": chunk, "rw": rw, "depth": depth, "peer": BARE_COPIER, "rep": rep}
        if depth > 1:
            rows.append(bench.keep_row({**cell, "what": "copies", "iops": bare_copies(folder, chunk, rw, depth, size)}))
            continue
        if rw != "randwrite":
            continue
        origin, plain, store = (os.open(path, os.O_RDWR | os.O_DIRECT) for path in disks_for_writes(folder))
        length, count = chunk * 1024, size // 1024 // chunk
        block, entry = mmap.mmap(-1, length), mmap.mmap(-1, PIECE)
        places = list(range(0, ORIGIN_BYTES, length))
        random.Random(rep).shuffle(places)

        def first(nth, at):
            os.preadv(origin, [block], at)
            os.pwritev(store, [block], 2 * MIB + nth * length)
            os.fdatasync(store)
            os.pwritev(store, [entry], nth // (PIECE // 16) * PIECE)
            os.fdatasync(store)
            os.pwritev(origin, [block], at)

        for what, step in (("plain", lambda nth, at: os.pwritev(plain, [block], at)), ("first", first)):
            begun = time.monotonic()
            for nth, at in enumerate(places[:count]):
                step(nth, at)
            rate = count / (time.monotonic() - begun)
            rows.append(bench.keep_row({**cell, "what": what, "iops": rate}))
        for disk in (origin, plain, store):
            os.close(disk)
    return rows


def bare_copies(folder, chunk, rw, depth, size):
    """Chunks copied a second, `depth` at a time: read at once, written as one piece, flushed, their entries written, flushed."""
    origin, _, store_path = disks_for_writes(folder)
    length, count = chunk * 1024, size // 1024 // chunk
    together = length * depth if rw == "write" else length
    reads = fio_reads([[f"--rw={rw.replace('write', 'read')}", f"--bs={together}", f"--iodepth={1 if rw == 'write' else depth}",
                        f"--size={ORIGIN_BYTES}", f"--io_size={size}", f"--filename={origin}"]])
    if not reads:
        return None
    store = os.open(store_path, os.O_RDWR | os.O_DIRECT)
    block, entry = mmap.mmap(-1, length * depth), mmap.mmap(-1, PIECE)
    begun = time.monotonic()
    for nth in range(count // depth):
        os.pwritev(store, [block], 2 * MIB + nth * length * depth)
        os.fdatasync(store)
        os.pwritev(store, [entry], nth * depth // (PIECE // 16) * PIECE)
        os.fdatasync(store)
    took = time.monotonic() - begun + reads / 1000
    os.close(store)
    return count / took


def kernel_writes(bench, folder, medium, rep):
    """The guest's disks are what a server of ours exports of the same files, so both sides have the same disk and the same flushes."""
    disks = disks_for_writes(folder)
    rows = []
    with bench.starter() as starter:
        sock, log = starter.paths("below")
        command = [bench.blockwork, "serve", "--disk", *disks, "--nbd", f"unix:{sock}"]
        server = starter.start("below", bench.blockwork, lambda: servers.Server("below", command, log, sock).wait_for_ready_line())
        if not server:
            return rows
        exports = [f"--nbd={name}={sock},disk/{os.path.basename(path)}" for name, path in zip(("origin", "plain", "store"), disks)]
        cells = " ".join("/".join(map(str, cell)) for cell in CELLS)
        command = [bench.guest, "run", f"{bench.root}/bench/guest/copy_out.sh", *exports, "--variable", f"CELLS={cells}"]
        log_path = f"{bench.data}/snapshot-guest-{medium}.log"
        try:
            with open(log_path, "w") as guest_log:
                done = subprocess.run(command, stdout=subprocess.PIPE, stderr=guest_log, text=True, timeout=GUEST_SECONDS)
            failed = f"exit code {done.returncode}" if done.returncode else ""
        except subprocess.TimeoutExpired:
            failed = f"it took more than {GUEST_SECONDS} s"
        if failed:
            with open(log_path) as guest_log:
                said = [line.strip() for line in guest_log.read().partition("Stack backtrace")[0].splitlines() if line.strip()]
            starter.note(f"the kernel's part on {medium} is skipped: {failed}: {' | '.join(said[-5:])[-500:]} (all of it: {log_path})")
            return rows
        sizes = {(chunk, rw, depth): size for chunk, rw, depth, size in CELLS}
        for line in done.stdout.splitlines():
            row = {"medium": medium, "peer": KERNEL, "rep": rep, **json.loads(line)}
            if row["what"] == "store":
                chunks = sizes[row["chunk"], row["rw"], row["depth"]] // 1024 // row["chunk"]
                row["flushes"] = row["flushes"] / chunks
            rows.append(bench.keep_row(row))
    return rows


def copy_outs(bench):
    if not machine.has(bench.guest):
        bench.notes.append(f"the kernel's part is skipped: {bench.guest} is not there")
    rows = []
    with tempfile.TemporaryDirectory(prefix="blockwork-bench-", dir="/dev/shm") as memory:
        for rep in range(bench.reps):
            for folder, medium in ((memory, "memory"), (bench.data, "disk")):
                rows += our_writes(bench, folder, medium, rep) + bare_writes(bench, folder, medium, rep)
                # Emulated, the kernel takes minutes: once.
                if rep == 0 and machine.has(bench.guest):
                    rows += kernel_writes(bench, folder, medium, rep)
    return copy_out_table(rows)


def copy_out_table(rows):
    keys = ["medium", "chunk", "rw", "depth"]
    heads = [*keys, f"{OURS}: plain", "first", "again", f"{KERNEL}: plain", "first", "again", f"first: share of plain, {OURS}", KERNEL, BARE_COPIER,
             f"{OURS} : {KERNEL}", f"{OURS} : {BARE_COPIER}", f"store's flushes and FUA writes per first write, {OURS}, {KERNEL}",
             "writes of the store, reads of the origin"]
    lines = ["**First writes to an origin's chunks, and rewrites, IOPS, and in brackets the share of plain writes in the same round, of "
             f"rewrites by turns with the standard error (medians; the kernel's of one round); goals: again {AGAIN_GOAL}, ours : kernel's {FIRST_GOAL}**", "",
             "| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads)]
    cells = list(dict.fromkeys(tuple(row[key] for key in keys) for row in rows))
    for cell in cells:
        match = dict(zip(keys, cell))
        line, first = [str(key) for key in cell], {}
        for peer in (OURS, KERNEL):
            for what in ("plain", "first", "again"):
                rate = show(median(rows, "iops", peer=peer, what=what, **match))
                shares = shares_of_plain(rows, peer, what, match)
                share = statistics.median(shares) if shares else None
                first[peer] = share if what == "first" else first.get(peer)
                error = error_of(shares) if what == "again" else ""
                line.append(f"{rate} ({share:.2f}{error})" if share and what != "plain" else rate)
        first[BARE_COPIER] = share_of_bare_copies(rows, match)
        line += [f"{first[peer]:.2f}" if first[peer] else "" for peer in (OURS, KERNEL, BARE_COPIER)]
        line += [show_ratio(first[OURS] / first[peer]) if first[OURS] and first[peer] else "" for peer in (KERNEL, BARE_COPIER)]
        def count(value, peer=OURS, what="first"):
            return show(median(rows, value, peer=peer, what=what, **match))
        line += [f"{count('flushes')}, {count('flushes', KERNEL, 'store')}", f"{count('store_writes')}, {count('origin_reads')}"]
        lines.append("| " + " | ".join(line) + " |")
    return lines + ["", "(`memory`: files on tmpfs, where a flush costs nothing; `disk`: files where it costs what it costs. The guest is an",
                    "emulated machine, its plain writes are slower than ours: so shares are compared, not rates. Where the kernel's share is over 0.5, twice",
                    "that would be faster than plain writes. The bare copier makes the same steps on the same files one after the other, with nobody to",
                    "serve: read, write, flush, entry, flush, write. What they take besides the last one, added to what our plain write takes, gives its",
                    "share. At depth 1 each is a system call; at depth 32 the chunks of a batch are read together by io_uring and written as one piece.)", ""]


def share_of_bare_copies(rows, match):
    """What would be left of our plain rate if a first write took no more besides than what the bare copier takes."""
    ours = median(rows, "iops", peer=OURS, what="plain", **match)
    copies = median(rows, "iops", peer=BARE_COPIER, what="copies", **match)
    if ours and copies:
        return 1 / (1 + ours / copies)
    plain, first = (median(rows, "iops", peer=BARE_COPIER, what=what, **match) for what in ("plain", "first"))
    return 1 / (1 + ours * (1 / first - 1 / plain)) if ours and plain and first else None


def shares_of_plain(rows, peer, what, match):
    """Of plain writes in the same round; of rewrites, in the same turn of it, where they were made by turns."""
    def rates(which):
        return {(row["rep"], row.get("turn")): row["iops"] for row in rows if row["peer"] == peer and row["what"] == which and row.get("iops")
                and all(row[key] == match[key] for key in match)}
    these, plain = rates(what), rates("plain")
    if what == "again":
        plain |= rates("plain again")
    return [these[turn] / plain[turn] for turn in these if turn in plain]

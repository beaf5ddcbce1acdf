"""Section `nfs`: a file on an NFS server (nfs-ganesha, in a network namespace of its own), served over NBD by us and by
qemu-storage-daemon's nfs driver (libnfs); and to a guest's ring (vhost-user-blk), whose writes are vectored: pages of a guest lie
anywhere, where a socket brings a write in one piece.

Ours speaks version 4.0 where it is not told otherwise, in which a call may have several writes; libnfs speaks version 3.
Both ask the same server over loopback, which takes most of the processor: ratios tell, and say less than the difference between
the clients is. On files in memory (tmpfs), where what is written is durable at once, the protocol alone is measured. On the disk every
64th write is followed by a flush. Without, libnfs leaves all in the server's memory and would lose it when the server crashes, while
ours has the server commit what it keeps for that, and so goes at the disk's pace from some point on (`uncommitted=`): measured as well, with two such
points. How the server's writes are cut is counted in a run of its own."""

import json
import os
import re
import resource
import statistics
import subprocess
import tempfile

from . import clients, machine
from .servers import Server
from .tables import OURS, errors, median, show, table

QSD = "qsd"
LOADS = [("64k random writes", "randwrite", "64k", 16), ("64k sequential writes", "write", "64k", 16),
         ("4k sequential writes", "write", "4k", 16), ("4k random writes", "randwrite", "4k", 16),
         ("64k random reads", "randread", "64k", 16)]
MEMORY = "/dev/shm"
GOAL = 1.3
# A guest's writes: each in so many pieces.
PIECES = 16
VECTORED = [("64 KiB random writes", "randwrite"), ("64 KiB sequential writes", "write")]
# How much of the processor an nfs-ganesha takes for a write of a client's differs by a third from one start of it to the next, and stays so.
STARTS = 7
# Where nobody flushes: how much ours keeps, instead of 64M.
ROOM = "1G"
ROOMY = f"{OURS}, uncommitted={ROOM}"
# In version 3, which qemu-storage-daemon's client speaks as well: a call for each write.
VERSION_3 = f"{OURS}, vers=3"
QUERIES = {OURS: "", ROOMY: f"?uncommitted={ROOM}", VERSION_3: "?vers=3"}
# The load that the bare client makes as well (crates/leaf/examples/bare_nfs.rs), with as many connections as ours.
BOUND = LOADS[0]
BARES, CONNECTIONS = {"bare client": "", "bare client, vers=3": "?vers=3"}, 4
# On the disk a flush follows so many writes.
FLUSH_EVERY = 64
# The tests use the same server.
SETUP = os.path.join(os.path.dirname(__file__), "../../tests/nfs")


class Ganesha:
    """The server, its network, and the folder that it exports."""

    def __init__(self, folder, log_folder):
        self.folder, self.log = folder, f"{log_folder}/ganesha.log"
        if os.path.exists(self.log):
            os.unlink(self.log)  # of an earlier one, which was up too
        config = f"{log_folder}/ganesha.conf"
        with open(f"{SETUP}/ganesha.conf") as template, open(config, "w") as file:
            file.write(template.read().replace("@FOLDER@", folder).replace("@ACCESS@", "RW"))
        self.namespace = subprocess.Popen(
            ["unshare", "--mount", "--net", "--propagation", "private", "sh", f"{SETUP}/network.sh"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.namespace.stdout.readline()
        command = ["nsenter", "--target", str(self.namespace.pid), "--net", "--mount", "ganesha.nfsd", "-F", "-f", config,
                   "-L", self.log, "-p", "/run/ganesha.pid"]
        self.server = Server("nfs-ganesha", command, f"{log_folder}/ganesha.out").wait_for(self.is_up)

    def is_up(self):
        return os.path.exists(self.log) and "NFS SERVER INITIALIZED" in open(self.log, errors="replace").read()

    def beside(self, command):
        """The same command, in the server's network."""
        return ["nsenter", "--target", str(self.namespace.pid), "--net", *command]

    def stop(self):
        self.server.process.kill()
        self.server.stop()
        self.namespace.stdin.close()
        self.namespace.wait()


def nfs(bench):
    missing = [p for p in ("ganesha.nfsd", "rpcbind", "nsenter", "ip", "fio") if not machine.has(p)]
    if missing or not machine.is_root():
        return [f"Skipped: needs root, nfs-ganesha, rpcbind and fio (missing: {', '.join(missing) or 'root'}).", ""]
    lines = []
    places = (("memory", MEMORY, [], LOADS, (OURS, VERSION_3, QSD)), ("disk", bench.data, [f"--fsync={FLUSH_EVERY}"], LOADS, (OURS, QSD)),
              ("disk, nobody flushes", bench.data, [], [BOUND], (OURS, ROOMY, QSD)))
    for place, where, extra, loads, peers in places:
        starts = min(STARTS, bench.reps)
        found = [one_start(bench, place, where, extra, loads, peers, nth, starts) for nth in range(starts)]
        rows, rings, alone = (sum(some, []) for some in zip(*(start[:3] for start in found)))
        lines += tables(place, f"{place}, starts of the NFS server: {starts}", bool(extra), peers, rows, alone)
        lines += ring_tables(peers, rings, starts) + found[-1][3]
    return lines


def one_start(bench, place, where, extra, loads, peers, nth, starts):
    """With the nth NFS server: rows by NBD, by a guest's ring, and of the bare client; and, with the last one, what it was asked to write."""
    reps = range(nth, bench.reps, starts)
    with tempfile.TemporaryDirectory(dir=where, prefix="blockwork-nfs-") as folder:
        ganesha = Ganesha(folder, bench.run_folder)
        try:
            with bench.starter() as starter:
                served = serve(bench, starter, ganesha, folder, peers)
                with_rings = place == "memory" and machine.has(bench.vhostload)
                # Twice: all are slower at first, whoever they are.
                rings = guests(bench, served, "just started", reps) if with_rings else []
                rows = measure(bench, ganesha, served, place, extra, loads, reps)
                rings += guests(bench, served, "after the loads above", reps) if with_rings else []
                alone = bare_rows(bench, ganesha, folder, place, extra, reps if OURS in served else [])
                counts = counted(bench, ganesha, served) if place == "memory" and nth + 1 == starts else []
                return rows, rings, alone, counts
        finally:
            ganesha.stop()


def serve(bench, starter, ganesha, folder, peers):
    """A server and a file for each."""
    served = {}
    for number, peer in enumerate(peers):
        # All of it is there: to make room for what is written for the first time is the server's file system's work, a third of
        # what it does of it then, and whoever comes first would have it.
        bench.write(path_of(folder, number), min(bench.file_bytes, 512 << 20))
        server = start(starter, ganesha, peer, path_of(folder, number))
        if server:
            served[peer] = server
    return served


def path_of(folder, number):
    return f"{folder}/{number}.img"


def measure(bench, ganesha, served, place, extra, loads, reps):
    rows = []
    for load, rw, bs, depth in loads:
        for rep in reps:
            for peer, server in served.items():
                flushes = extra if "write" in rw else []
                one = lambda: client(bench, ganesha, server, rw, bs, depth, flushes)  # noqa: E731, B023
                rows.append(bench.row({"load": load, "place": place}, peer, "fio", rep, one))
    return rows


def bare_rows(bench, ganesha, folder, place, extra, reps):
    """The bare client writes to the first one's file."""
    rows = []
    for rep in reps if machine.has(bench.bare_nfs) else []:
        for name, query in BARES.items():
            one = lambda: bare(bench, ganesha, path_of(folder, 0) + query, bool(extra))  # noqa: E731, B023
            rows.append(bench.row({"place": place}, name, name, rep, one))
    return rows


def tables(place, where, flushes, peers, rows, alone):
    lines = table(f"MiB/s, depth 16, one client, {where}; goal for writes of 64 KiB: {GOAL}", rows, ["load"], list(peers), "mibps", max,
                  rivals=[QSD])
    lines += table(f"Processor time of the NBD server, µs per I/O, {place}", rows, ["load"], list(peers), "server_us", min, rivals=[QSD])
    if flushes:
        lines += table(f"ms for a flush, {place}", [row for row in rows if "flush_ms" in row], ["load"], list(peers), "flush_ms", min,
                       rivals=[QSD])
    return lines + shares(place, rows, alone, list(peers)) + [machine.noise(rows), ""]


def guests(bench, served, servers, reps):
    """The same servers by a guest's ring."""
    rows = []
    for load, rw in VECTORED:
        for rep in reps:
            for peer, server in served.items():
                one = lambda: guest(bench, server, rw)  # noqa: E731, B023
                rows.append(bench.row({"load": load, "servers": servers, "place": "memory"}, peer, "vhostload", rep, one))
    return rows


def ring_tables(peers, rows, starts):
    if not rows:
        return []
    title = f"by a guest's ring (vhost-user-blk): writes in {PIECES} pieces, depth 16, memory"
    return (table(f"MiB/s {title}, starts of the NFS server: {starts}; goal: {GOAL}", rows, ["load", "servers"], list(peers), "mibps", max,
                  rivals=[QSD])
            + table(f"Processor time of the server, µs per I/O, {title}", rows, ["load", "servers"], list(peers), "server_us", min,
                    rivals=[QSD])
            + [machine.noise(rows), *errors(rows)])


def guest(bench, server, rw):
    options = ["--rw", rw, "--bs", "65536", "--pieces", str(PIECES), "--depth", "16", "--queue-size", "128"]
    row = clients.vhostload(bench.vhostload, ring_of(server.sock), server.pid, bench.seconds, options)
    return {**row, "mibps": row["iops"] / 16} if row.get("iops") else row


def ring_of(sock):
    """Where a server that has an NBD socket there serves a guest's ring."""
    return f"{sock}.ring"


def start(starter, ganesha, peer, path):
    name = f"{peer} nfs"
    sock, log = starter.paths(name)
    if peer in QUERIES:
        command = [starter.blockwork, "serve", "--disk", f"nfs://127.0.0.1{path}{QUERIES[peer]}", "--nbd", f"unix:{sock}",
                   "--vhost-user", ring_of(sock), "--workers", "1"]
        ready = Server.wait_for_ready_line
    else:
        folder, file = os.path.split(path)
        where = f"driver=nfs,node-name=n0,server.type=inet,server.host=127.0.0.1,path={folder}/{file}"
        command = ["qemu-storage-daemon", "--blockdev", where,
                   "--nbd-server", f"addr.type=unix,addr.path={sock}", "--export", "type=nbd,id=e0,node-name=n0,name=,writable=on",
                   "--export", f"type=vhost-user-blk,id=e1,node-name=n0,addr.type=unix,addr.path={ring_of(sock)},writable=on"]
        ready = Server.wait_for_socket
    return starter.start(name, command[0], lambda: ready(Server(name, ganesha.beside(command), log, sock)))


def client(bench, ganesha, server, rw, bs, depth, extra):
    before = machine.cpu_seconds(ganesha.server.pid)
    row = clients.fio(["--ioengine=nbd", f"--uri=nbd+unix:///?socket={server.sock}", f"--rw={rw}", f"--bs={bs}",
                       f"--iodepth={depth}", *extra], bench.seconds, server.pid)
    after = machine.cpu_seconds(ganesha.server.pid)
    return {**row, "nfs_us": (after - before) * 1e6 / row["ios"]} if row.get("ios") else row


def bare(bench, ganesha, path, flushes):
    """The same writes by a client that does nothing else, and without NBD."""
    def own():
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    _, _, bs, depth = BOUND
    command = [bench.bare_nfs, f"nfs://127.0.0.1{path}", str(CONNECTIONS), str(depth), str(int(bs[:-1]) << 10),
               str(FLUSH_EVERY if flushes else 0), str(bench.seconds)]
    before = own(), machine.cpu_seconds(ganesha.server.pid)
    done = subprocess.run(ganesha.beside(command), capture_output=True, text=True)
    if done.returncode:
        return {"error": done.stderr[-500:]}
    row = json.loads(done.stdout)
    after = own(), machine.cpu_seconds(ganesha.server.pid)
    client_us, nfs_us = ((b - a) * 1e6 / row["writes"] for a, b in zip(before, after))
    return {"mibps": row["mibps"], "client_us": client_us, "nfs_us": nfs_us}


def shares(place, rows, alone, peers):
    """Where the processors' time goes in one write, and what would be left of it if the NBD server took none."""
    load = BOUND[0]
    lines = [f"**Processor time of a 64 KiB random write, µs, {place}; the bare client has no NBD before it and nothing to remember**", "",
             "| | MiB/s | fio | NBD server, or bare client | NFS server | all | MiB/s if the NBD server took none |",
             "| --- | --- | --- | --- | --- | --- | --- |"]
    for name, some in [*((peer, [row for row in rows if row["peer"] == peer and row["load"] == load]) for peer in peers),
                       *((name, [row for row in alone if row["peer"] == name]) for name in BARES)]:
        rate = median(some, "mibps", peer=name)
        if not rate:
            continue
        parts = [statistics.median(row.get(key) or 0 for row in some)
                 for key in (("client_us", "server_us", "nfs_us") if name not in BARES else ("none", "client_us", "nfs_us"))]
        without = rate * sum(parts) / (sum(parts) - parts[1]) if name not in BARES else None
        lines.append("| " + " | ".join([name, show(rate), *map(show, parts), show(sum(parts)), show(without) if without else ""]) + " |")
    return lines + [""]


def counted(bench, ganesha, peers):
    """WRITE calls and their sizes, for 32 MiB written in sequence in 4 KiB pieces: what reaches the server's file is
    what the server was asked to write."""
    lines = ["**pwrites of the NFS server for 32 MiB of 4 KiB sequential writes, depth 16**", "",
             "| | pwrites | KiB each |", "| --- | --- | --- |"]
    for peer, server in peers.items():
        trace = f"{bench.run_folder}/{peer}.strace"
        tracer = subprocess.Popen(["strace", "-f", "-qq", "-e", "trace=pwrite64,pwritev,pwritev2", "-o", trace,
                                   "-p", str(ganesha.server.pid)], stderr=subprocess.PIPE)
        subprocess.run(["fio", "--name=count", "--ioengine=nbd", f"--uri=nbd+unix:///?socket={server.sock}", "--rw=write",
                        "--bs=4k", "--iodepth=16", "--size=32m", "--end_fsync=1"], capture_output=True, check=True)
        tracer.terminate()
        tracer.wait()
        with open(trace, errors="replace") as file:
            sizes = [int(found) for found in re.findall(r"= (\d+)$", file.read(), re.MULTILINE) if int(found) > 0]
        if sizes:
            lines.append(f"| {peer} | {len(sizes)} | {sum(sizes) / len(sizes) / 1024:.1f} |")
    return lines + [""]

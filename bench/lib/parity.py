"""Section `parity`: what writes to a RAID5 or RAID6 ask of its disks, by us and by the kernel's md in its guest; and how fast ours are."""

import json
import os
import subprocess
import tempfile

from . import clients, machine, servers
from .snapshot import counted
from .tables import OURS, errors, median, show

KERNEL = "kernel"
MIB = 1 << 20
MEMBER_BYTES = 192 * MIB
# (level, disks, chunk in KiB)
ARRAYS = [(5, 4, 64), (5, 4, 512), (6, 6, 512)]
# (what, rw, KiB of a piece, depth, KiB to write, KiB to write them in)
JOBS = [
    ("in order", "write", 4, 1, 8 << 10, 8 << 10),
    ("in order", "write", 4, 32, 64 << 10, 64 << 10),
    ("in order", "write", 64, 4, 64 << 10, 64 << 10),
    ("in order", "write", 64, 16, 64 << 10, 64 << 10),
    ("in order", "write", 1024, 4, 128 << 10, 128 << 10),
    ("at random", "randwrite", 4, 32, 16 << 10, 256 << 10),
    ("at random, within 1 MiB", "randwrite", 4, 32, 16 << 10, 1 << 10),
]
# How long the guest may take: it is emulated.
GUEST_SECONDS = 600


def parity(bench):
    if not machine.has("fio"):
        return ["Skipped: needs fio.", ""]
    rows = []
    with tempfile.TemporaryDirectory(prefix="blockwork-bench-", dir="/dev/shm") as folder:
        for rep in range(bench.reps):
            for array in ARRAYS:
                rows += our_writes(bench, folder, array, rep)
        if machine.has(bench.guest):
            rows += kernel_writes(bench, folder)
        else:
            bench.notes.append(f"the kernel's part is skipped: {bench.guest} is not there")
    return tables(rows)


def empty_disks(folder, count):
    paths = [f"{folder}/m{nth}" for nth in range(count)]
    for path in paths:
        with open(path, "wb") as file:
            # Where nothing has been written, that it has to find room is no cost of a parity.
            file.write(bytes(MEMBER_BYTES))
    return paths


def least(array, job):
    """What the disks have to be asked for at least, of rows that are written as a whole: MiB written."""
    level, disks, _ = array
    parities = 2 if level == 6 else 1
    return job[4] / 1024 * disks / (disks - parities)


def our_writes(bench, folder, array, rep):
    """A new array for each job: what is in memory after one would help another."""
    rows = []
    level, disks, chunk = array
    for job in JOBS:
        what, rw, piece, depth, size, span = job
        paths = empty_disks(folder, disks)
        made = subprocess.run([bench.blockwork, "md", "create", "--level", str(level), "--raid-devices", str(disks), "--chunk", f"{chunk}K",
                               "--assume-clean", "--name", "bench", *paths], capture_output=True, text=True)
        cell = {"array": name_of(array), "job": name_of_job(job)}
        if made.returncode:
            rows.append({**cell, "peer": OURS, "rep": rep, "error": made.stderr})
            continue
        with bench.starter() as starter:
            sock, log = starter.paths(OURS)
            command = [bench.blockwork, "serve", "--stats", "--json", "--disk", *paths, "--nbd", f"unix:{sock}", "md/bench"]
            server = starter.start(OURS, bench.blockwork, lambda: servers.Server(OURS, command, log, sock).wait_for_ready_line())
            if not server:
                return rows

            def once():
                before, cpu = counted(server), machine.cpu_seconds(server.pid)
                report, error = clients.run(["fio", "--name=load", "--output-format=json", "--ioengine=nbd", "--randrepeat=1",
                                             f"--uri=nbd+unix:///md/bench?socket={sock}", f"--bs={piece}k", f"--rw={rw}",
                                             f"--iodepth={depth}", f"--size={span}k", f"--io_size={size}k"])
                cpu, after = machine.cpu_seconds(server.pid) - cpu, counted(server)
                if error or report is None:
                    return {"error": error}

                def grown(counter):
                    return sum(after[name][counter] - before[name][counter] for name in after) / MIB
                ios = size // piece
                return {"read": grown("read_bytes"), "written": grown("write_bytes"), "mibps": report["jobs"][0]["write"]["bw_bytes"] / MIB,
                        "server_us": cpu * 1e6 / ios}
            rows.append(bench.row(cell, OURS, "fio", rep, once))
    return rows


def kernel_writes(bench, folder):
    """The guest's disks are files that a server of ours exports. Counts only: the guest is emulated."""
    paths = empty_disks(folder, max(disks for _, disks, _ in ARRAYS))
    rows = []
    with bench.starter() as starter:
        sock, log = starter.paths("below")
        command = [bench.blockwork, "serve", "--disk", *paths, "--nbd", f"unix:{sock}"]
        if not starter.start("below", bench.blockwork, lambda: servers.Server("below", command, log, sock).wait_for_ready_line()):
            return rows
        arrays = {"/".join(map(str, array)): name_of(array) for array in ARRAYS}
        jobs = {"/".join(map(str, job[1:])): name_of_job(job) for job in JOBS}
        command = [bench.guest, "run", f"{bench.root}/bench/guest/parity.sh",
                   *(f"--nbd={os.path.basename(path)}={sock},disk/{os.path.basename(path)}" for path in paths),
                   "--variable", f"ARRAYS={' '.join(arrays)}", "--variable", f"JOBS={' '.join(jobs)}"]
        log_path = f"{bench.data}/parity-guest.log"
        with open(log_path, "w") as guest_log:
            try:
                done = subprocess.run(command, stdout=subprocess.PIPE, stderr=guest_log, text=True, timeout=GUEST_SECONDS)
            except subprocess.TimeoutExpired:
                starter.note(f"the kernel's part is skipped: it took more than {GUEST_SECONDS} s (what it said: {log_path})")
                return rows
        if done.returncode:
            starter.note(f"the kernel's part ended with exit code {done.returncode} (what it said: {log_path})")
        for line in done.stdout.splitlines():
            row = json.loads(line)
            rows.append(bench.keep_row({"array": arrays[row["array"]], "job": jobs[row["job"]], "peer": KERNEL, "rep": 0,
                                        "read": row["read"] / 2048, "written": row["written"] / 2048}))
    return rows


def name_of(array):
    level, disks, chunk = array
    return f"RAID{level}, {disks} disks, {chunk} KiB"


def name_of_job(job):
    what, _, piece, depth, _, _ = job
    return f"{piece} KiB x {depth}, {what}"


def tables(rows):
    heads = ["array", "pieces x depth", "MiB", "least written", f"read, {OURS}", KERNEL, f"written, {OURS}", KERNEL, f"MiB/s, {OURS}", "CPU, us per piece"]
    lines = ["**What the disks are asked for, MiB (medians); the kernel's of one run; our rate and our server's CPU time, disks in memory**", "",
             "| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads)]
    for array in ARRAYS:
        for job in JOBS:
            match = {"array": name_of(array), "job": name_of_job(job)}
            line = [*match.values(), f"{job[4] / 1024:.0f}", show(least(array, job))]
            line += [show(median(rows, value, peer=peer, **match)) for value in ("read", "written") for peer in (OURS, KERNEL)]
            line += [show(median(rows, value, peer=OURS, **match)) for value in ("mibps", "server_us")]
            lines.append("| " + " | ".join(line) + " |")
    return lines + [""] + errors(rows)

"""Section `fuse`: mkfs.xfs, mount and fstrim on a loop device over a large sparse file, and what of the discards
reaches the file.

The kernel's plain loop device on the file is the limit; then our FUSE export of the same file, then
qemu-storage-daemon's. The fallocates on the backing file are counted in a run of their own, by ext4's tracepoints,
system-wide and for that inode: they fire whoever calls (a system call, io_uring's workers, the loop device's kernel
threads), where strace would see only the first."""

import os
import re
import subprocess
import time

from . import machine
from .tables import OURS, table

SIZE_BYTES = 3800 << 30
PLAIN = "kernel loop"
TRACEPOINTS = ("ext4:ext4_punch_hole", "ext4:ext4_zero_range", "ext4:ext4_fallocate_enter")
STEPS = ("mkfs.xfs", "mount", "fstrim", "umount", "mkfs.xfs -K")


def fuse(bench):
    missing = [p for p in ("mkfs.xfs", "losetup", "fstrim") if not machine.has(p)]
    if missing or not machine.is_root():
        return [f"Skipped: needs root, mkfs.xfs, losetup and fstrim (missing: {', '.join(missing) or 'root'}).", ""]
    rows = []
    for rep in range(bench.reps):
        for peer in (PLAIN, OURS, "qsd"):
            row = bench.quietly(lambda: one(bench, peer))
            if row.get("times"):
                rows += [{"peer": peer, "step": step, "rep": rep, "seconds": seconds, "steal": row["steal"],
                          "tries": row["tries"]} for step, seconds in row["times"].items()]
    lines = table(f"Seconds on a {SIZE_BYTES >> 30} GiB sparse file", rows, ["step"], [PLAIN, OURS, "qsd"], "seconds",
                  min, rivals=["qsd"])
    if any(row["peer"] == OURS for row in rows):
        lines += table("Against the kernel's plain loop device", rows, ["step"], [PLAIN, OURS], "seconds", min, rivals=[PLAIN])
    return lines + [machine.noise(rows), ""] + count_fallocates(bench)


def count_fallocates(bench):
    if not machine.has("perf"):
        return ["Fallocates: not counted, perf is missing.", ""]
    filesystem = machine.first_line("findmnt", "-n", "-o", "FSTYPE", "-T", bench.data)
    if filesystem != "ext4":
        return [f"Fallocates: not counted, the files lie on {filesystem} and the tracepoints used are ext4's.", ""]
    lines = ["**Fallocates that reached the backing file (mkfs.xfs and fstrim)**", "",
             "| | calls | below 4 KiB | smallest, bytes | largest, bytes | sum, GiB | sizes: count |", "|" + " --- |" * 7]
    for peer in (PLAIN, OURS, "qsd"):
        counted = one(bench, peer, trace=True)
        sizes = counted.get("fallocates")
        if sizes is None:
            continue
        if not sizes:
            lines.append(f"| {peer} | 0 | | | | | |")
            continue
        common = sorted(((sizes.count(size), size) for size in set(sizes)), reverse=True)[:5]
        words = ", ".join(f"{size}: {count}" for count, size in common)
        lines.append(f"| {peer} | {len(sizes)} | {sum(size < 4096 for size in sizes)} | {min(sizes)} | {max(sizes)} | "
                     f"{sum(sizes) / 2**30:.0f} | {words} |")
    return lines + [""]


def one(bench, peer, trace=False):
    """A fresh sparse file, exported by `peer`, through a loop device. With `trace` the sizes of its fallocates,
    else the time of each step."""
    backing, target = f"{bench.data}/sparse.img", f"{bench.run_folder}/fuse.img"
    if os.path.exists(backing):
        os.unlink(backing)
    with open(backing, "wb") as file:
        file.truncate(SIZE_BYTES)
    open(target, "wb").close()
    try:
        with bench.starter() as starter:
            if peer != PLAIN:
                export = starter.blockwork_fuse if peer == OURS else starter.qsd_fuse
                if not export(f"{peer} fuse", backing, target):
                    return {}
            disk = backing if peer == PLAIN else target
            if trace:
                return {"fallocates": traced(bench, backing, lambda: steps(bench, disk, STEPS[:-1]))}
            return {"times": steps(bench, disk, STEPS)}
    finally:
        os.unlink(backing)


def steps(bench, disk, wanted):
    folder = f"{bench.run_folder}/mount"
    os.makedirs(folder, exist_ok=True)
    device = command("losetup", "--direct-io=on", "--find", "--show", disk).strip()
    commands = {
        "mkfs.xfs": ("mkfs.xfs", "-q", "-f", device),
        "mount": ("mount", device, folder),
        "fstrim": ("fstrim", folder),
        "umount": ("umount", folder),
        "mkfs.xfs -K": ("mkfs.xfs", "-q", "-f", "-K", device),
    }
    times = {}
    try:
        for step in wanted:
            began = time.monotonic()
            command(*commands[step])
            times[step] = time.monotonic() - began
    finally:
        if os.path.ismount(folder):
            command("umount", folder)
        command("losetup", "--detach", device)
    return times


def traced(bench, backing, work):
    """The sizes in bytes of all fallocates on the file while work() runs."""
    record = f"{bench.run_folder}/fallocates.data"
    inode = os.stat(backing).st_ino
    arguments = ["perf", "record", "-q", "-a", "-o", record]
    for tracepoint in TRACEPOINTS:
        arguments += ["-e", tracepoint, "--filter", f"ino == {inode}"]
    # Over the FIFOs perf says when it has begun to record, so that nothing is missed and nothing waits in vain.
    control, answers = (f"{bench.run_folder}/perf.{name}" for name in ("control", "answers"))
    for fifo in (control, answers):
        if not os.path.exists(fifo):
            os.mkfifo(fifo)
    perf = subprocess.Popen([*arguments, "-D", "-1", "--control", f"fifo:{control},{answers}"],
                            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        say(perf, control, answers, "enable")
        work()
        say(perf, control, answers, "disable")
    finally:
        perf.send_signal(2)
        perf.communicate()
    text = command("perf", "script", "-i", record, "-F", "event,trace")
    return [int(size) for size in re.findall(r"\blen (\d+)", text)]


def say(perf, control, answers, word):
    with open(control, "r+b", buffering=0) as pipe, open(answers, "r+b", buffering=0) as reply:
        pipe.write(word.encode() + b"\n")
        os.set_blocking(reply.fileno(), False)
        deadline = time.monotonic() + 20
        while not reply.read(16):
            if perf.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"perf does not answer: {perf.stderr.read().decode(errors='replace')}")
            time.sleep(0.01)


def command(*words):
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()}")
    return done.stdout

"""What the machine says: stolen CPU, CPU time, system calls of others, disk counters, versions."""

import os
import shutil
import statistics
import subprocess
import time

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
PF_KTHREAD = 0x00200000  # include/linux/sched.h


def is_root():
    return os.geteuid() == 0


def has(program):
    return shutil.which(program) is not None


def cpu_seconds(pid):
    """User + system time of a process, all its threads, the ended ones too."""
    with open(f"/proc/{pid}/stat") as stat:
        fields = stat.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND


def steal_ticks():
    """(stolen, all) ticks of all CPUs. What a guest's host takes away shows here and nowhere else."""
    with open("/proc/stat") as stat:
        ticks = [int(field) for field in stat.readline().split()[1:]]
    return ticks[7], sum(ticks[:8])


def quiet(measure, limit, tries):
    """Runs measure() -> dict until the host stole less than `limit` of the CPU; keeps the run with the least steal.
    The result has `steal` (0 to 1) and `tries`."""
    best = None
    for attempt in range(1, tries + 1):
        before = steal_ticks()
        row = measure()
        after = steal_ticks()
        row["steal"] = (after[0] - before[0]) / max(1, after[1] - before[1])
        if best is None or row["steal"] < best["steal"]:
            best = row
        best["tries"] = attempt
        if best["steal"] <= limit:
            break
    return best


def busy(seconds=1.0):
    """Whatever else took more than a twentieth of a processor in that time: [(part of one processor, pid, name)], the busiest first.
    Threads of the kernel are left out: they write back what was measured before."""
    def times():
        found = {}
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/stat") as stat:
                    name, _, fields = stat.read().partition("(")[2].rpartition(")")
            except OSError:
                continue  # It ended meanwhile.
            fields = fields.split()
            if not int(fields[6]) & PF_KTHREAD:
                found[int(pid)] = (int(fields[11]) + int(fields[12]), name)
        return found
    before = times()
    time.sleep(seconds)
    after = times()
    took = [((ticks - before[pid][0]) / TICKS_PER_SECOND / seconds, pid, name)
            for pid, (ticks, name) in after.items() if pid in before and pid != os.getpid()]
    return sorted((entry for entry in took if entry[0] > 0.05), reverse=True)


def drop_caches():
    os.sync()
    with open("/proc/sys/vm/drop_caches", "w") as caches:
        caches.write("3")


class Disk:
    """The block device under a folder, as the kernel counts it."""

    def __init__(self, folder):
        device = os.stat(folder).st_dev
        node = os.path.realpath(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}")
        if os.path.exists(f"{node}/partition"):
            node = os.path.dirname(node)
        self.name = os.path.basename(node)
        self.path = f"{node}/stat"

    def known(self):
        return os.path.exists(self.path)

    def reads(self):
        """(requests, sectors) read since boot."""
        with open(self.path) as stat:
            fields = [int(field) for field in stat.read().split()]
        return fields[0], fields[2]


def first_line(*command):
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except OSError:
        return "not installed"
    lines = (done.stdout + done.stderr).strip().splitlines()
    return lines[0] if lines else "unknown"


def describe(root, data):
    """Markdown lines: machine, kernel and versions."""
    with open("/proc/cpuinfo") as info:
        model = next((line.split(":", 1)[1].strip() for line in info if line.startswith("model name")), "unknown CPU")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    kernel = os.uname()
    return [
        f"- machine: {os.cpu_count()} x {model}, {memory:.0f} GiB, {kernel.sysname} {kernel.release} {kernel.machine}",
        f"- files on: {first_line('findmnt', '-n', '-o', 'SOURCE,FSTYPE', '-T', data)}",
        f"- blockwork: {first_line('git', '-C', root, 'rev-parse', '--short', 'HEAD')}",
        f"- qemu-storage-daemon: {first_line('qemu-storage-daemon', '--version')}",
        f"- nbdkit: {first_line('nbdkit', '--version')}; fio: {first_line('fio', '--version')}; "
        f"mkfs.xfs: {first_line('mkfs.xfs', '-V')}",
    ]


def noise(rows):
    """One line about stolen CPU and repeated runs."""
    steal = [row["steal"] * 100 for row in rows if "steal" in row]
    if not steal:
        return ""
    repeated = sum(row["tries"] > 1 for row in rows if "tries" in row)
    return (f"Steal of the runs kept: median {statistics.median(steal):.1f} %, worst {max(steal):.1f} %; "
            f"{repeated} of {len(steal)} runs were repeated for it.")

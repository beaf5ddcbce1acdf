"""Section `moves`: what a guest waits that moves from one server to another on the same disks (`serve --migratable`)."""

import subprocess
import tempfile

from . import clients, machine, servers
from .tables import OURS, errors, median, show

MIB = 1 << 20
# (what, bytes of each disk, what makes it, what is served)
STACKS = [
    ("a file", [1024], [], []),
    ("RAID1 of two", [1088] * 2, ["md create --level 1 --raid-devices 2 --name bench --bitmap internal --assume-clean --size 1G {disks}"],
     ["md/bench"]),
    ("a thin volume, 4 GiB of which are mapped", [5 << 10],
     ["vg create vg {disks}", "lv create vg/pool --thin-pool --size 4608M --disk {disks}",
      "lv create vg/disk --thin pool --virtual-size 4G --disk {disks}"], ["vg/disk"]),
]
# More than it takes to write all of that volume.
FILL_SECONDS = 20


def moves(bench):
    if not machine.has(bench.vhostload):
        return ["Skipped: vhostload is not built.", ""]
    rows = []
    for stack in STACKS:
        with tempfile.TemporaryDirectory(prefix="moves-", dir=bench.data) as folder:
            rows += measure(bench, folder, stack)
    lines = ["**Milliseconds, with a full queue of 32 writes of 4 KiB before each move**", "",
             "| disks | the first server has let go | the next one has answered | all of it |", "| --- | --- | --- | --- |"]
    for what, *_ in STACKS:
        stopped, answered = (median(rows, value, stack=what) for value in ("stopped_ms", "answered_ms"))
        if stopped and answered:
            lines.append(f"| {what} | {show(stopped)} | {show(answered)} | {show(stopped + answered)} |")
    return lines + [""] + errors(rows)


def measure(bench, folder, stack):
    what, sizes, made_by, volumes = stack
    disks = [f"{folder}/{nth}.img" for nth in range(len(sizes))]
    for disk, mib in zip(disks, sizes):
        with open(disk, "wb") as file:
            file.truncate(mib * MIB)
    for command in made_by:
        subprocess.run([bench.blockwork, *command.format(disks=" ".join(disks)).split()], check=True, capture_output=True)
    rows = []
    with bench.starter() as starter:
        running = [start(starter, name, disks, volumes) for name in ("here", "there")]
        if None in running:
            return []
        if "vg/disk" in volumes:
            # In pieces of the pool's blocks, so that each is mapped.
            fill = ["--rw", "write", "--bs", "65536", "--seconds", str(FILL_SECONDS)]
            subprocess.run([bench.vhostload, "--socket", running[0].sock, *fill], check=True, capture_output=True)
        for rep in range(bench.reps):
            rows.append(bench.row({"stack": what}, OURS, "vhostload", rep, lambda: load(bench, *running)))
    return rows


def start(starter, name, disks, volumes):
    sock, log = starter.paths(name)
    command = [starter.blockwork, "serve", "--migratable", "--vhost-user", sock, "--disk", *disks, *volumes]
    return starter.start(OURS, starter.blockwork, lambda: servers.Server(OURS, command, log, sock).wait_for_ready_line())


def load(bench, here, there):
    report, error = clients.run([bench.vhostload, "--socket", here.sock, "--rw", "randread", "--seconds", "0.1", "--move-to", there.sock])
    return report["moves"] if report else {"error": error}

"""Load generators: fio (libnbd) and nbdload over NBD, fio with io_uring on a file. Each returns one row."""

import json
import subprocess
import time

from . import machine


def run(command):
    done = subprocess.run(command, capture_output=True, text=True)
    start = done.stdout.find("{")
    if start < 0:
        return None, (done.stderr + done.stdout)[-500:]
    return json.loads(done.stdout[start:]), None if done.returncode == 0 else done.stderr[-500:]


def fio(arguments, seconds, pid=None, jobs=1, at=()):
    """`at` goes before the command."""
    before = machine.cpu_seconds(pid) if pid else 0
    command = [*at, "fio", "--name=load", "--group_reporting", "--output-format=json", "--norandommap",
               "--randrepeat=0", "--lat_percentiles=1", "--time_based", f"--runtime={int(seconds * 1000)}ms", *arguments]
    report, error = run(command)
    after = machine.cpu_seconds(pid) if pid else 0
    if error or report is None:
        return {"error": error}
    job = report["jobs"][0]
    ios = job["read"]["total_ios"] + job["write"]["total_ios"]
    if ios == 0:
        return {"error": "fio made no I/O"}
    side = job["read"] if job["read"]["total_ios"] else job["write"]
    elapsed = side["runtime"] / 1000
    row = {
        "ios": ios,
        "iops": ios / elapsed,
        "mibps": side["io_bytes"] / elapsed / 2**20,
        # With the call that hands it over, which clat leaves out: the other clients have it in theirs, and of one read of a file it is
        # a quarter.
        "p50_us": side["lat_ns"]["percentile"]["50.000000"] / 1000,
        # fio gives the mean of its jobs, in percent of a core.
        "client_us": (job["usr_cpu"] + job["sys_cpu"]) / 100 * jobs * elapsed * 1e6 / ios,
    }
    sync = job.get("sync", {})
    if sync.get("total_ios"):
        row["flush_ms"] = sync["lat_ns"]["mean"] / 1e6
    if pid:
        row["server_us"] = (after - before) * 1e6 / ios
    return row


def fio_nbd(server, rw, bs, depth, connections, seconds):
    return fio(["--ioengine=nbd", f"--uri=nbd+unix:///?socket={server.sock}", f"--rw={rw}", f"--bs={bs}",
                f"--iodepth={depth}", f"--numjobs={connections}"], seconds, server.pid, connections)


def nbdcopy(server, size, connections, request):
    """The whole disk, to nowhere: 64 requests at a time by each connection."""
    before, began = machine.cpu_seconds(server.pid), time.monotonic()
    done = subprocess.run(["nbdcopy", "--no-extents", f"--connections={connections}", f"--request-size={request}",
                           f"nbd+unix:///?socket={server.sock}", "null:"], capture_output=True, text=True)
    elapsed, after = time.monotonic() - began, machine.cpu_seconds(server.pid)
    if done.returncode:
        return {"error": done.stderr[-500:]}
    mib = size / 2**20
    return {"mibps": mib / elapsed, "server_us": (after - before) * 1e6 / mib}


def fio_file(path, rw, bs, depth, connections, seconds, more=(), at=()):
    return fio(["--ioengine=io_uring", f"--filename={path}", f"--rw={rw}", f"--bs={bs}", "--direct=1",
                f"--iodepth={depth}", f"--numjobs={connections}", *more], seconds, jobs=connections, at=at)


def fio_file_in_batches(path, rw, bs, depth, seconds, at=()):
    """As a guest's driver has it: all that was done is asked for again in one piece."""
    batches = [f"--iodepth_batch_submit={depth}", "--iodepth_batch_complete_min=1", f"--iodepth_batch_complete_max={depth}"]
    return fio_file(path, rw, bs, depth, 1, seconds, batches, at)


def vhostload(program, sock, pid, seconds, options, at=()):
    """Our own guest; `at` goes before the command."""
    report, error = run([*at, program, "--socket", sock, "--pid", str(pid), "--seconds", str(seconds), *options])
    if error or report is None:
        return {"error": error}
    return {"iops": report["iops"], "p50_us": report["p50_us"], "server_us": report["server_cpu_us_per_io"],
            "kicks": report["kicks_per_io"], "share": report["server_cpu_share"],
            "error": f"{report['stalls']} calls did not come" if report["stalls"] else None}


class Nbdload:
    """Our own generator; `program` is its path."""

    def __init__(self, program):
        self.program = program

    def __call__(self, server, rw, bs, depth, connections, seconds=None, extra=()):
        command = [self.program, f"unix:{server.sock}", "--rw", rw, "--bs", bs, "--depth", str(depth),
                   "--connections", str(connections), "--pid", str(server.pid), *extra]
        if seconds is not None:
            command += ["--seconds", str(seconds)]
        report, error = run(command)
        if error or report is None:
            return {"error": error}
        return {
            "iops": report["iops"],
            "mibps": report["mibps"],
            "p50_us": report["p50_us"],
            "ios": report["ios"],
            "seconds": report["seconds"],
            "server_us": report["server_cpu_us_per_io"],
            "client_us": report["client_cpu_us_per_io"],
            "syscalls": report["server_syscalls_per_io"],
        }

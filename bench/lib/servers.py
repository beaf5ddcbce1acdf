"""Servers under test: started as children, ready when they accept, ended by their own pid.

A peer that is not installed, or a `blockwork` that is not built, is skipped with a note."""

import os
import select
import signal
import socket
import subprocess
import time

from . import machine

START_SECONDS = 20
STOP_SECONDS = 30


class CannotStart(Exception):
    """The server did not get ready; the message holds its own words."""


class Server:
    def __init__(self, name, command, log, sock=None):
        self.name, self.sock, self.log_path = name, sock, log
        if sock and os.path.exists(sock):
            os.unlink(sock)
        self.log = open(log, "wb")
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self.log)

    @property
    def pid(self):
        return self.process.pid

    def wait_for(self, ready):
        """Waits until ready() is true."""
        deadline = time.monotonic() + START_SECONDS
        while not ready():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                with open(self.log_path, errors="replace") as log:
                    raise CannotStart(f"{self.name} did not start: {log.read().strip()[-500:]}")
            time.sleep(0.01)
        return self

    def wait_for_socket(self):
        return self.wait_for(lambda: accepts(self.sock))

    def wait_for_ready_line(self):
        """`blockwork serve` prints one line `ready ADDRESS...`, or the same as JSON, when it accepts clients."""

        def ready():
            readable, _, _ = select.select([self.process.stdout], [], [], 0)
            return bool(readable) and self.process.stdout.readline().startswith((b"ready ", b'{"ready"'))

        return self.wait_for(ready)

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.process.stdout.close()
        self.log.close()


def accepts(path):
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except OSError:
            return False
    return True


class Starter:
    """Starts servers and remembers what could not be started, and why."""

    def __init__(self, blockwork, folder):
        self.blockwork, self.folder = blockwork, folder
        self.running, self.notes = [], []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop_all()

    def stop_all(self):
        for server in self.running:
            server.stop()
        self.running = []

    def note(self, text):
        if text not in self.notes:
            self.notes.append(text)
            print(f"note: {text}", flush=True)

    def start(self, name, program, make):
        """make() -> Server that is ready; None, with a note, if the program is missing or fails."""
        if not machine.has(program):
            self.note(f"{name} is skipped: {program} is not there")
            return None
        try:
            server = make()
        except CannotStart as why:
            self.note(f"{name} is skipped: {why}")
            return None
        self.running.append(server)
        return server

    def paths(self, name):
        file_name = name.replace(" ", "-")
        return f"{self.folder}/{file_name}.sock", f"{self.folder}/{file_name}.log"

    def blockwork_nbd(self, name, disk, *options):
        sock, log = self.paths(name)
        command = [self.blockwork, "serve", "--disk", disk, "--nbd", f"unix:{sock}", *options]
        return self.start(name, self.blockwork, lambda: Server(name, command, log, sock).wait_for_ready_line())

    def qsd_nbd(self, name, *blockdevs):
        sock, log = self.paths(name)
        command = ["qemu-storage-daemon"]
        for blockdev in blockdevs:
            command += ["--blockdev", blockdev]
        command += ["--nbd-server", f"addr.type=unix,addr.path={sock}",
                    "--export", "type=nbd,id=e0,node-name=n0,name=,writable=on"]
        return self.start(name, command[0], lambda: Server(name, command, log, sock).wait_for_socket())

    def nbdkit(self, name, *plugin):
        sock, log = self.paths(name)
        command = ["nbdkit", "-f", "-U", sock, *plugin]
        return self.start(name, command[0], lambda: Server(name, command, log, sock).wait_for_socket())

    def blockwork_fuse(self, name, disk, target):
        _, log = self.paths(name)
        command = [self.blockwork, "serve", "--disk", disk, "--fuse", target]
        return self.start(name, self.blockwork, lambda: Server(name, command, log).wait_for_ready_line())

    def qsd_fuse(self, name, disk, target):
        _, log = self.paths(name)
        command = ["qemu-storage-daemon", "--blockdev", f"{qsd_file(disk, 'f0')},discard=unmap",
                   "--blockdev", "driver=raw,node-name=n0,file=f0,discard=unmap",
                   "--export", f"type=fuse,id=e0,node-name=n0,mountpoint={target},writable=on"]

        def exported():
            return os.stat(target).st_size == os.stat(disk).st_size

        return self.start(name, command[0], lambda: Server(name, command, log).wait_for(exported))


def qsd_file(path, node="n0"):
    """qemu's best way to a file: O_DIRECT and io_uring."""
    return f"driver=file,node-name={node},filename={path},aio=io_uring,cache.direct=on"


def qsd_null(size):
    """A null disk that sends its bytes. With read-zeroes=on qemu answers libnbd's reads with holes, without payload."""
    return f"driver=null-co,node-name=n0,size={size},read-zeroes=off"

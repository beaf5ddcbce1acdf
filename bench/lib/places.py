"""Where the files of a comparison lie: on the disk that everybody has, and in memory. What a disk in a cloud gives varies by more, from one
second to the next, than two ways of asking it differ; a file system on a loop device over memory has O_DIRECT as a disk's has, and varies less."""

import contextlib
import os
import subprocess

from . import machine

MEMORY = "/dev/shm"
# A file in memory is no larger than that, and its file system by what that keeps for itself.
BYTES_MAX = 1 << 30
OVERHEAD = 128 << 20
NEEDED = ("losetup", "mkfs.ext4", "mount")


def command(*words):
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


@contextlib.contextmanager
def in_memory(bench, name):
    """The path of a file with O_DIRECT in memory, which is gone afterwards; or None, with a note."""
    if not machine.is_root() or not all(map(machine.has, NEEDED)):
        bench.notes.append(f"in memory: skipped, needs root, {' and '.join(NEEDED)}")
        yield None
        return
    size = min(bench.file_bytes, BYTES_MAX)
    backing, folder = f"{MEMORY}/blockwork-bench-{os.getpid()}.img", f"{bench.run_folder}/memory"
    with contextlib.ExitStack() as undo:
        undo.callback(lambda: os.path.exists(backing) and os.unlink(backing))
        with open(backing, "wb") as file:
            file.truncate(size + OVERHEAD)
        device = command("losetup", "--find", "--show", backing).strip()
        undo.callback(command, "losetup", "--detach", device)
        # All is written at once: what is put off would be done beside what is measured.
        command("mkfs.ext4", "-q", "-E", "lazy_itable_init=0,lazy_journal_init=0", device)
        os.makedirs(folder, exist_ok=True)
        command("mount", device, folder)
        undo.callback(command, "umount", folder)
        path = f"{folder}/{name}.img"
        bench.write(path, size)
        yield path

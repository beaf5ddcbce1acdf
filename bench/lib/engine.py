"""Sections `engine`, `rings` and `instructions`: the engine alone, and rings of guests, by the crates' own benchmarks; what they print is kept as it is."""

import subprocess

from . import machine


def output_of(bench, crate, name):
    done = subprocess.run(["cargo", "bench", "--quiet", "-p", crate, "--bench", name], cwd=bench.root, capture_output=True, text=True)
    return (done.stdout.strip(), None) if done.returncode == 0 else (None, ["Failed:", "", "```", done.stderr.strip()[-3000:], "```", ""])


def engine(bench):
    printed, failure = output_of(bench, "blockwork-layer", "engine")
    return failure or ["```", printed, "```", ""]


def rings(bench):
    printed, failure = output_of(bench, "blockwork-export", "rings")
    return failure or [printed, ""]


def instructions(bench):
    if not machine.has("valgrind"):
        return ["Skipped: valgrind is not there.", ""]
    done = subprocess.run([f"{bench.root}/bench/instructions"], capture_output=True, text=True)
    return [done.stdout.strip() if done.returncode == 0 else f"Failed: {done.stderr.strip()[-1000:]}", ""]

"""Sections `engine` and `instructions`: the engine alone, by the layer crate's own benchmark; what they print is kept as it is."""

import os
import subprocess

from . import machine


def engine(bench):
    if not os.path.exists(f"{bench.root}/crates/layer/benches/engine.rs"):
        return ["Skipped: crates/layer/benches/engine.rs is not there.", ""]
    done = subprocess.run(["cargo", "bench", "--quiet", "-p", "blockwork-layer", "--bench", "engine"], cwd=bench.root,
                          capture_output=True, text=True)
    if done.returncode:
        return ["Failed:", "", "```", done.stderr.strip()[-3000:], "```", ""]
    return ["```", done.stdout.strip(), "```", ""]


def instructions(bench):
    if not machine.has("valgrind"):
        return ["Skipped: valgrind is not there.", ""]
    done = subprocess.run([f"{bench.root}/bench/instructions"], capture_output=True, text=True)
    return [done.stdout.strip() if done.returncode == 0 else f"Failed: {done.stderr.strip()[-1000:]}", ""]

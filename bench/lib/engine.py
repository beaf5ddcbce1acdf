"""Section `engine`: the engine alone, by the layer crate's own benchmark; its output is kept as it is."""

import os
import subprocess


def engine(bench):
    if not os.path.exists(f"{bench.root}/crates/layer/benches/engine.rs"):
        return ["Skipped: crates/layer/benches/engine.rs is not there.", ""]
    done = subprocess.run(["cargo", "bench", "--quiet", "-p", "blockwork-layer", "--bench", "engine"], cwd=bench.root,
                          capture_output=True, text=True)
    if done.returncode:
        return ["Failed:", "", "```", done.stderr.strip()[-3000:], "```", ""]
    return ["```", done.stdout.strip(), "```", ""]

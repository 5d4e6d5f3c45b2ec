"""The path to an accelerator: batches that arrive in its memory, and learners that compute there.

Needs an accelerator of CUDA: `./scripts/bench gpu --here` measures with the interpreter that has a
torch for it, and leaves out the libraries that this interpreter lacks.
"""

import subprocess
import sys

from benchmarks.gpu.timing import DEVICE

ROWS = ("draws_small", "draws_atari", "graph", "update_atari", "simulator", "jobs")


def about() -> dict[str, str]:
    """Return what accelerator is measured, and with which driver; ends the program where there is
    none.
    """
    import torch

    if DEVICE != "cuda":
        return {"accelerator": f"none: tried out on {DEVICE}"}
    if not torch.cuda.is_available():
        sys.exit(f"no accelerator of CUDA: torch {torch.__version__} finds none on this machine")
    return {
        "accelerator": torch.cuda.get_device_name(0),
        "driver": _driver(),
        "cuda": torch.version.cuda or "unknown",
    }


def _driver() -> str:
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"]
    try:
        said = subprocess.run(query, capture_output=True, text=True, check=True, timeout=60).stdout
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return said.strip()

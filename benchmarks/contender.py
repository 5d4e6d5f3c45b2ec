"""`python -m benchmarks.contender MODULE NAME SECONDS`: one contender of one row, as one JSON line.

Compares nothing.
"""

import importlib
import importlib.util
import json
import sys


def main(module: str, name: str, seconds: str) -> None:
    if importlib.util.find_spec("torch"):  # the environment of Reverb has no torch
        import torch

        # the learner's setting; for all sides, as forking after an OpenMP pool has started can hang
        torch.set_num_threads(1)
    row = importlib.import_module(module).ROW
    figures = row.contender(name).measure(float(seconds))
    print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

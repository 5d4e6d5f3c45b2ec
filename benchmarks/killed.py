"""`python -m benchmarks.killed`: the demo, of which feeder, learner and actors are killed in turn.

Each is a process, ended by SIGKILL at random moments and started again at once. The feeder begins
with its newest save, or with ``--keep`` with the rows that it had; the learner with its own newest
file, `loader.state_dict()` included; actors with the newest weights. The curve goes to docs/curves,
and `python -m benchmarks.curves` draws it. Exit code 1: the target was not reached.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import deque
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "examples"))
import cartpole_demo as demo  # noqa: E402

SAVE_S, TURNS = 2.0, ("feeder", "learner", "actor 0", "feeder", "learner", "actor 1")


class Lines:
    """Returns of an actor, one a line: a queue's lock would be held by an actor that is killed."""

    def __init__(self, path):
        self._file = open(path, "a", buffering=1)  # noqa: SIM115 - for as long as the process

    def put(self, value):
        self._file.write(f"{value}\n")


def act(folder, number):
    demo.act(f"ipc://{folder}/f", number, 2, 0, Lines(f"{folder}/returns-{number}"), "wait")


def learn(folder):
    """Update for ever, from the newest file on."""
    import torch

    from async_loader import AsyncDataLoader, connect
    from async_loader.errors import Timeout

    torch.manual_seed(0)
    torch.set_num_threads(1)
    learner, path = demo.Learner(), Path(folder) / "learner"
    names = ("online", "target", "policy", "optimizer")
    kept = torch.load(path) if path.exists() else None
    if kept is not None:
        for name in names:
            getattr(learner, name).load_state_dict(kept[name])
        learner.updates = kept["updates"]
    version, saved = learner.updates, time.monotonic()
    with connect(f"ipc://{folder}/f") as client:
        source = client.table("replay").source(seed=0, prefetch=2)
        with AsyncDataLoader(source, demo.BATCH, timeout_s=1.0) as loader:
            if kept is not None:
                loader.load_state_dict(kept["loader"])
            client.publish("policy", learner.policy.state_dict(), version=version)
            while True:
                try:
                    learner.update(next(loader))
                except Timeout:  # a feeder that was started again has no weights
                    version += 1
                    client.publish("policy", learner.policy.state_dict(), version=version)
                    continue
                if learner.updates % 10 == 0:
                    version = max(version + 1, learner.updates)
                    client.publish("policy", learner.policy.state_dict(), version=version)
                if time.monotonic() - saved > SAVE_S:
                    saved = time.monotonic()
                    state = {name: getattr(learner, name).state_dict() for name in names}
                    state |= {"updates": learner.updates, "loader": loader.state_dict()}
                    torch.save(state, f"{folder}/new")
                    os.replace(f"{folder}/new", path)


def start(name, folder):
    if name == "feeder":
        command = ["-m", "async_loader", "serve", "--config", f"{folder}/feeder.yaml"]
    else:
        command = ["-m", "benchmarks.killed", "--be", name, "--folder", folder]
    with open(f"{folder}/log", "a") as log:
        return subprocess.Popen([sys.executable, *command], cwd=ROOT, stdout=log, stderr=log)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--every", type=float, default=30.0, help="seconds between kills")
    parser.add_argument("--kills", type=int, default=len(TURNS), help="at least")
    parser.add_argument("--target", type=float, default=475.0)
    parser.add_argument("--max-seconds", type=float, default=900.0)
    parser.add_argument("--keep", action="store_true", help="the table outlives the feeder")
    parser.add_argument("--seed", type=int, default=0, help="of the moments of the kills")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "curves" / "killed.json")
    parser.add_argument("--be", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.be is not None:
        kind, _, number = options.be.partition(" ")
        return learn(options.folder) if kind == "learner" else act(options.folder, int(number))
    with tempfile.TemporaryDirectory() as folder:
        found = train(options, folder)
    if options.out.parent.is_dir():
        options.out.write_text(json.dumps(found) + "\n")
    reached = found["points"][-1][1] >= options.target
    print(f"{len(found['kills'])} kills, {'reached' if reached else 'not reached'}")
    return sys.exit(0 if reached else 1)


def train(options, folder):
    table = {**demo.TABLE, "seed": 0, **({"keep": f"{folder}/kept"} if options.keep else {})}
    settings = {"bind": f"ipc://{folder}/f", "tables": {"replay": table}}
    if not options.keep:
        settings["checkpoint"] = {"path": f"{folder}/saves", "every_s": SAVE_S}
    Path(f"{folder}/feeder.yaml").write_text(json.dumps(settings))
    rng, began = random.Random(options.seed), time.monotonic()
    processes = {name: start(name, folder) for name in sorted(set(TURNS))}
    newest, seen, points, kills = deque(maxlen=demo.WINDOW), [0, 0], [], []
    due = rng.expovariate(1 / options.every)
    try:
        while (now := time.monotonic() - began) < options.max_seconds:
            for number in range(2):
                path = Path(f"{folder}/returns-{number}")
                whole = path.read_text().split("\n")[:-1] if path.exists() else []
                newest.extend(map(float, whole[seen[number] :]))
                seen[number] = len(whole)
            if len(newest) == demo.WINDOW:
                points.append([round(now, 1), sum(newest) / demo.WINDOW])
                if points[-1][1] >= options.target and len(kills) >= options.kills:
                    break
            if now >= due:
                name = TURNS[len(kills) % len(TURNS)]
                processes[name].kill()
                processes[name].wait()
                kills.append([round(now, 1), name.split()[0]])
                due = now + rng.expovariate(1 / options.every)
                print(f"{now:5.0f} s  return {(points or [[0, 0]])[-1][1]:5.1f}, killed the {name}")
            for name, one in processes.items():
                if one.poll() is not None:
                    processes[name] = start(name, folder)
            time.sleep(0.5)
    finally:
        for one in processes.values():
            one.kill()
            one.wait()
        log = Path(f"{folder}/log").read_text()
        print(log[-3000:] if "Traceback" in log else "", file=sys.stderr)
    return {"every_s": options.every, "keep": options.keep, "kills": kills, "points": points}


if __name__ == "__main__":
    main()

"""Kill -9 of generators, grader, learner and feeder: ``python tests/rollouts/play.py 1 200``.

Each prompt is trained once, by the learner's own book, or ended with a reason.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE)]

from roles import SCHEMA, SETTINGS  # noqa: E402

from async_loader.rollouts.schema import GroupSchema  # noqa: E402

PROMPTS = 60
LIMIT_S = 300.0
ROLES = ("generator", "generator", "grader", "learner", "feeder")


class Round:
    """One round, by its seed."""

    def __init__(self, seed, kinds=("generator", "grader", "learner", "feeder"), kills=4):
        self.seed, self.random = seed, random.Random(seed)
        self.kinds, self.kills = kinds, kills
        self.folder = tempfile.mkdtemp(prefix="rollouts-")
        self.address = f"ipc://{self.folder}/feeder"
        rollouts = {"schema": GroupSchema.of(SCHEMA).plain(), **SETTINGS}
        config = {
            "bind": self.address, "tables": {"math": {"rollouts": rollouts}},
            "checkpoint": {"path": f"{self.folder}/saves", "every_s": 0.1},
            "heartbeat_s": 0.1, "silence_s": 0.5,
        }  # fmt: skip
        Path(self.folder, "feeder.yaml").write_text(yaml.safe_dump(config))
        self.processes = {}
        self.said = []
        self.counts = {"lost": 0, "doubled": 0, "stuck": 1}

    def start(self, place):
        role = ROLES[place]
        command = [sys.executable, str(HERE / "roles.py"), role, self.address, self.folder]
        command += [str(PROMPTS)]
        if role == "feeder":
            config = f"{self.folder}/feeder.yaml"
            command = [sys.executable, "-m", "async_loader", "serve", "--config", config]
        log = open(f"{self.folder}/{role}-{place}.log", "ab")  # noqa: SIM115
        self.processes[place] = subprocess.Popen(command, stdout=log, stderr=log)
        log.close()

    def play(self):
        """Return what is wrong."""
        begun = time.monotonic()
        try:
            for place in range(len(ROLES)):
                self.start(place)
            self.wait_for_a_cut(begun)
            for _ in range(self.kills):
                time.sleep(self.random.uniform(0.02, 0.6))
                places = [i for i, role in enumerate(ROLES) if role in self.kinds]
                place = self.random.choice(places)
                process = self.processes[place]
                if process.poll() == 0:  # it has ended: there are no more prompts
                    continue
                self.said.append(f"{ROLES[place]} at {time.monotonic() - begun:.2f}")
                process.send_signal(signal.SIGKILL)
                process.wait()
                self.start(place)
            return self.result(begun)
        finally:
            for process in self.processes.values():
                if process.poll() is None:
                    process.kill()
                process.wait()

    def wait_for_a_cut(self, begun):
        """A learner that is killed before has nothing to go on from."""
        while time.monotonic() - begun < LIMIT_S / 2:
            if Path(self.folder, "ledger.json").exists():
                return
            time.sleep(0.01)

    def result(self, begun):
        ledger = Path(self.folder, "ledger.json")
        while time.monotonic() - begun < LIMIT_S:
            code = self.processes[3].poll()
            if code is not None:
                break
            time.sleep(0.01)
        else:
            return ["the learner has not ended"]
        if code:
            return [f"the learner ended with {code}", *self.logs()]
        state = json.loads(ledger.read_text())
        trained, stats, wrong = state["trained"], state["stats"], []
        if len(set(trained)) < len(trained):
            twice = sorted({one for one in trained if trained.count(one) > 1})
            wrong.append(f"prompts {twice} were trained twice")
        kept = {one for one in range(PROMPTS) if one % 5}
        self.counts = {
            "lost": len(kept - set(trained)), "doubled": len(trained) - len(set(trained)),
            "stuck": 0,
        }  # fmt: skip
        if set(trained) != kept:
            wrong.append(f"prompts {sorted(kept - set(trained))} were not trained: {stats}")
        if stats["drawn"] != PROMPTS or stats["trained"] != len(kept):
            wrong.append(f"the table counts {stats}")
        return wrong

    def logs(self):
        return [
            f"{path.name}: {text[-1500:]}"
            for path in Path(self.folder).glob("*.log")
            if (text := path.read_text(errors="replace").strip())
        ]


def main(first, last):
    """How many rounds found something."""
    failed = 0
    for seed in range(first, last + 1):
        one, begun = Round(seed), time.monotonic()
        wrong = one.play()
        failed += bool(wrong)
        print(f"seed {seed}: {time.monotonic() - begun:.1f} s, {', '.join(one.said)}", flush=True)
        for text in wrong:
            print("   ", text, flush=True)
        if wrong:
            print("    in", one.folder, flush=True)
        else:
            subprocess.run(["rm", "-r", one.folder], check=True)
    print(f"{last - first + 1} rounds, {failed} failed")
    return failed


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(min(1, main(int(sys.argv[1]), int(sys.argv[-1]))))

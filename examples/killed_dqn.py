"""A DQN is killed at random moments, goes on, and ends with the weights of an undisturbed run.

    python examples/killed_dqn.py
    python examples/killed_dqn.py --kills 10 --updates 6000

Model, optimizer, environment, table and `loader.state_dict()` are saved in one cut: the rest
goes into a file named after the table's next save, which then makes both valid at once. The exit
code is 1 if the two runs differ, or have not learned.
"""

from __future__ import annotations

import argparse
import pickle
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import gymnasium
import numpy as np
import torch
from cartpole_demo import BATCH, OBS_SCALE, Learner

from async_loader import AsyncDataLoader, Field, ReplayBuffer

SCHEMA = {
    "obs": Field((4,), "float32", next="next_obs"),
    "action": "int64",
    "reward": "float32",
    "terminated": "bool",
    "truncated": "bool",
}
STEPS_PER_UPDATE, WARMUP, SAVE_EVERY, EXPLORE_STEPS = 4, 1_000, 200, 4_000


class Run:
    """Everything that the next update depends on."""

    def __init__(self, folder: Path):
        self.folder, self.learner, self.steps = folder, Learner(), 0
        self.env = gymnasium.make("CartPole-v1")
        self.obs, _ = self.env.reset(seed=0)
        self.rng, self.total, self.returns = np.random.default_rng(0), 0.0, []
        kept, there = None, sorted(folder.glob("table/save-*"))
        self.saves = int(there[-1].name.removeprefix("save-")) if there else 0
        if self.saves:
            kept = torch.load(folder / f"rest-{self.saves}", weights_only=False)
            self.buffer = ReplayBuffer.from_checkpoint(folder / "table", number=self.saves)
        else:
            self.buffer = ReplayBuffer(50_000, schema=SCHEMA, seed=0)
        self.writer = self.buffer.writer(stream="env")
        # drawn when asked for, so that the draws of two runs see the same steps
        self.loader = AsyncDataLoader(self.buffer, BATCH, seed=0, prefetch=0)
        if kept is not None:
            self.loader.load_state_dict(kept["loader"])
            for name, state in kept["learner"].items():
                getattr(self.learner, name).load_state_dict(state)
            self.learner.updates = kept["updates"]
            vars(self).update(pickle.loads(kept["here"]))

    def save(self):
        """One cut: until the table's save is there, whole, the one before it counts."""
        learner, names = self.learner, ("online", "target", "policy", "optimizer")
        here = {
            name: vars(self)[name] for name in ("env", "obs", "rng", "total", "returns", "steps")
        }
        kept = {
            "loader": self.loader.state_dict(),
            "learner": {name: getattr(learner, name).state_dict() for name in names},
            "updates": learner.updates,
            "here": pickle.dumps(here),
        }
        torch.save(kept, self.folder / f"rest-{self.saves + 1}")
        self.saves = self.buffer.save(self.folder / "table").number
        (self.folder / f"rest-{self.saves - 2}").unlink(missing_ok=True)

    def step(self):
        """Step the environment once."""
        explores = self.rng.random() < max(0.02, 1.0 - self.steps / EXPLORE_STEPS)
        with torch.no_grad():
            values = self.learner.policy(torch.from_numpy(self.obs) / torch.tensor(OBS_SCALE))
        action = int(self.rng.integers(2)) if explores else int(values.argmax())
        after, reward, terminated, truncated, _ = self.env.step(action)
        self.writer.append(
            obs=self.obs,
            action=action,
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            final_obs=after if terminated or truncated else None,
        )
        self.obs, self.steps, self.total = after, self.steps + 1, self.total + reward
        if terminated or truncated:
            self.returns.append(self.total)
            self.total, (self.obs, _) = 0.0, self.env.reset()

    def train(self, updates):
        """Train to the end, from wherever it is."""
        due = self.learner.updates + SAVE_EVERY
        while self.learner.updates < updates:
            self.step()
            if self.steps > WARMUP and self.steps % STEPS_PER_UPDATE == 0:
                self.learner.update(next(self.loader))
            if self.learner.updates >= due and self.total == 0.0:  # a load ends open episodes
                self.save()
                due = self.learner.updates + SAVE_EVERY
        weights = torch.cat([one.flatten() for one in self.learner.policy.parameters()])
        mean = float(np.mean(self.returns[-20:]))
        print(f"{mean:.2f} {weights.double().sum().item():.12f}", flush=True)
        for one in (self.writer, self.loader, self.buffer):
            one.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--updates", type=int, default=2_000)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--within", type=float, default=6.0, help="seconds until a kill, at most")
    parser.add_argument("--least", type=float, default=100, help="mean return at the end")
    parser.add_argument("--folder", type=Path, help="train here to the end, and do nothing else")
    options = parser.parse_args()
    torch.manual_seed(0), torch.set_num_threads(1)
    if options.folder is not None:
        Run(options.folder).train(options.updates)
        return
    ends, kills = [], 0
    for most in (0, options.kills):
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, __file__, "--updates", str(options.updates)]
            while True:
                child = subprocess.Popen([*command, "--folder", folder], stdout=subprocess.PIPE)
                if kills < most:
                    time.sleep(random.uniform(options.within / 2, options.within))
                    if child.poll() is None:
                        child.kill()
                        kills += 1
                        print("killed", flush=True)
                said = child.communicate()[0].decode()
                if child.returncode >= 0:
                    break
            ends.append(said)
    print("without kills: return and sum of weights", ends[0], f"with {kills}: ", ends[1], sep="\n")
    sys.exit(0 if ends[0] == ends[1] and float(ends[0].split()[0]) >= options.least else 1)


if __name__ == "__main__":
    main()

"""`python -m benchmarks.sb3_runs`: DQN, SAC and TD3 with the buffers of Stable-Baselines3 and ours.

Each run is a process of its own; each algorithm runs five seeds with both buffers, in turns. The
record, benchmarks/results/sb3_runs.json, has each run's final return and the CPU time that `add`
and `sample` took; its summary is written into docs/guides/sb3.md, and a test compares the two.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from time import thread_time
from typing import Any

from benchmarks.readme import replaced

RECORD = Path(__file__).parent / "results" / "sb3_runs.json"
PAGE = Path(__file__).parent.parent / "docs" / "guides" / "sb3.md"
BEGIN = "<!-- runs: written by python -m benchmarks.sb3_runs -->"
END = "<!-- end of runs -->"
BUFFERS = ("stable-baselines3", "async_loader")
SEEDS = 5
EPISODES = 20
"""Of the evaluation at a run's end, with the greedy policy."""


@dataclass(frozen=True)
class Task:
    """An algorithm with its settings.

    DQN has CleanRL's settings, but updates every 4 steps rather than every 10: with the Huber loss
    of Stable-Baselines3 fewer updates for each target network let the values grow without end,
    whichever buffer there is.
    """

    algorithm: str
    env: str
    steps: int
    settings: dict[str, Any] = field(default_factory=dict)


TASKS = (
    Task(
        "DQN",
        "CartPole-v1",
        300_000,
        {
            "learning_rate": 2.5e-4,
            "batch_size": 128,
            "buffer_size": 10_000,
            "learning_starts": 10_000,
            "gamma": 0.99,
            "target_update_interval": 500,
            "train_freq": 4,
            "gradient_steps": 1,
            "exploration_fraction": 0.067,
            "exploration_final_eps": 0.05,
            "policy_kwargs": {"net_arch": [120, 84]},
        },
    ),
    Task("SAC", "Pendulum-v1", 6_000, {"learning_rate": 1e-3, "buffer_size": 100_000}),
    Task("TD3", "Pendulum-v1", 8_000, {"learning_rate": 1e-3, "buffer_size": 100_000}),
)


def run(task: Task, buffer: str, seed: int) -> dict[str, Any]:
    """Learn, evaluate, and return the figures of one run."""
    import stable_baselines3
    import torch
    from stable_baselines3.common import buffers
    from stable_baselines3.common.evaluation import evaluate_policy

    from async_loader.compat.sb3 import ReplayBuffer

    torch.set_num_threads(1)
    kind = _timed(ReplayBuffer if buffer == "async_loader" else buffers.ReplayBuffer)
    algorithm: Any = getattr(stable_baselines3, task.algorithm)
    model = algorithm(
        "MlpPolicy",
        task.env,
        replay_buffer_class=kind,
        seed=seed,
        device="cpu",
        **task.settings,
    )
    begin = thread_time()
    model.learn(task.steps)
    took_s = thread_time() - begin
    env = model.get_env()
    env.seed(1_000 + seed)
    mean, _ = evaluate_policy(model, env, EPISODES)
    return {
        "return": float(mean),
        "buffer_cpu_s": round(model.replay_buffer.spent_s, 3),
        "learn_cpu_s": round(took_s, 3),
        "versions": {
            "stable-baselines3": stable_baselines3.__version__,
            "torch": torch.__version__,
        },
    }


def _timed(kind: Any) -> Any:
    """Return a class of buffers that adds up the CPU time of its calls, without that of the clock,
    which is a call of the kernel's.
    """

    class Timed(kind):  # type: ignore[misc]
        spent_s = 0.0

        def add(self, *args: Any, **kwargs: Any) -> None:
            before, begin = thread_time(), thread_time()
            super().add(*args, **kwargs)
            self.spent_s += thread_time() - begin - (begin - before)

        def sample(self, *args: Any, **kwargs: Any) -> Any:
            before, begin = thread_time(), thread_time()
            samples = super().sample(*args, **kwargs)
            self.spent_s += thread_time() - begin - (begin - before)
            return samples

    return Timed


def summary(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one row per algorithm: both mean returns, their pooled standard deviation, and the
    median over seeds of the ratio of the buffers' CPU times.
    """
    rows = []
    for name in dict.fromkeys(one["algorithm"] for one in runs):
        by_buffer = {
            buffer: {
                one["seed"]: one
                for one in runs
                if (one["algorithm"], one["buffer"]) == (name, buffer)
            }
            for buffer in BUFFERS
        }
        theirs, ours = (by_buffer[buffer] for buffer in BUFFERS)
        returns = [[one["return"] for one in side.values()] for side in (theirs, ours)]
        rows.append(
            {
                "algorithm": name,
                "seeds": len(ours),
                "return_sb3": round(statistics.mean(returns[0]), 1),
                "return_ours": round(statistics.mean(returns[1]), 1),
                "pooled_std": round(
                    statistics.mean(statistics.variance(side) for side in returns) ** 0.5, 1
                ),
                "buffer_time_ratio": round(
                    statistics.median(
                        ours[seed]["buffer_cpu_s"] / theirs[seed]["buffer_cpu_s"] for seed in ours
                    ),
                    2,
                ),
            }
        )
    return rows


def section(rows: list[dict[str, Any]]) -> str:
    """Return the summary as the guide shows it."""
    lines = [
        "## Whole runs",
        "",
        "`python -m benchmarks.sb3_runs`: DQN on CartPole, SAC and TD3 on Pendulum, each with both "
        "buffers in turn. The final return",
        "is the mean of 20 episodes of the greedy policy; the time is processor time, the median "
        "over the seeds. With equal seeds both",
        "buffers lead to the same policy.",
        "",
        "| algorithm | seeds | final return, Stable-Baselines3 | here | pooled standard deviation "
        "| time in `add` and `sample`, here over there |",
        "|---|---|---|---|---|---|",
    ]
    names = ("algorithm", "seeds", "return_sb3", "return_ours", "pooled_std", "buffer_time_ratio")
    lines += [f"| {' | '.join(str(row[name]) for name in names)} |" for row in rows]
    return "\n".join(lines)


def main() -> None:
    """Run all, or with --algorithms some, whose runs replace those on record; with --one TASK
    BUFFER SEED one run, whose figures are printed as JSON.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one", nargs=3, metavar=("TASK", "BUFFER", "SEED"))
    parser.add_argument("--algorithms", nargs="+", choices=[task.algorithm for task in TASKS])
    asked = parser.parse_args()
    if one := asked.one:
        print(json.dumps(run(TASKS[int(one[0])], one[1], int(one[2]))))
        return
    runs: list[dict[str, Any]] = []
    for number, task in enumerate(TASKS):
        if task.algorithm not in (asked.algorithms or [task.algorithm]):
            continue
        for seed in range(SEEDS):
            for buffer in BUFFERS:
                command = [sys.executable, "-m", __spec__.name, "--one"]
                command += [str(number), buffer, str(seed)]
                printed = subprocess.run(command, check=True, capture_output=True, text=True)
                figures = json.loads(printed.stdout.splitlines()[-1])
                runs.append(
                    {
                        "algorithm": task.algorithm,
                        "seed": seed,
                        "buffer": buffer,
                        "when": datetime.now(UTC).date().isoformat(),
                        **figures,
                    }
                )
                print(runs[-1], flush=True)
    ran = {one["algorithm"] for one in runs}
    kept = json.loads(RECORD.read_text())["runs"] if RECORD.exists() else []
    runs += [one for one in kept if one["algorithm"] not in ran]
    order = [task.algorithm for task in TASKS]
    runs.sort(key=lambda one: order.index(one["algorithm"]))
    record = {"summary": summary(runs), "runs": runs}
    RECORD.write_text(json.dumps(record, indent=1) + "\n")
    written = f"{BEGIN}\n{section(record['summary'])}\n{END}"
    PAGE.write_text(replaced(PAGE.read_text(), written, BEGIN, END))
    print(json.dumps(record["summary"], indent=1))


if __name__ == "__main__":
    main()

"""Kill -9 of generators, grader and learner, at random moments, and what becomes of the prompts.

Ours plays ``tests/rollouts/play.py``, where the feeder is killed too. The others have the same
roles, pauses and kills. Their data is in memory, so that their server is spared; and their learner
writes its book after each batch, where ours saves each third one.
"""

import json
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import ROOT, Contender, Figures, Metric, Row, Target
from benchmarks.rollouts.theirs import CPUS, PARTITION

PROMPTS, BATCH, KILLS = 60, 4, 4
ROLES = ("generator", "generator", "grader", "learner")
MEMBER_S, STEP_S = 0.02, 0.005
POLL_S = 0.02
SPAWN = multiprocessing.get_context("spawn")
Group = dict[str, Any]


class PlainQueues:
    """Prompts, groups and graded groups, each in a `multiprocessing.Queue`."""

    IDLE_S = 5.0
    """Without a batch: a learner waits for what does not come."""

    def __init__(self) -> None:
        self.prompts, self.made, self.graded = SPAWN.Queue(), SPAWN.Queue(), SPAWN.Queue()

    def attach(self) -> None:
        """Connect, in the process of a role."""

    def put(self, prompt: int, tokens: Any) -> None:
        self.made.put({"prompt": prompt, "tokens": tokens})

    def grade(self) -> None:
        group = self.made.get()
        self.graded.put({**group, "reward": group["prompt"] % 5})

    def batch(self, count: int) -> list[Group]:
        return [self.graded.get() for _ in range(count)]

    def done(self, batch: list[Group]) -> None:
        """Forget what was trained."""


class TransferQueues:
    """Prompts in a `multiprocessing.Queue`; groups in TransferQueue, by status, which is polled."""

    IDLE_S = 12.0

    def __init__(self) -> None:
        self.prompts, self.address = SPAWN.Queue(), ""

    def attach(self) -> None:
        os.environ |= {"RAY_AUTH_MODE": "disabled", "RAY_prestart_worker_first_driver": "0"}
        import ray
        import transfer_queue

        ray.init(
            address=self.address or "local", include_dashboard=False, log_to_driver=False,
            **({} if self.address else {"num_cpus": CPUS, "object_store_memory": 1 << 30}),
        )  # fmt: skip
        transfer_queue.init()
        self.queue = transfer_queue
        self.address = ray.get_runtime_context().gcs_address

    def __getstate__(self) -> dict[str, Any]:
        return {"prompts": self.prompts, "address": self.address}

    def _put(self, prompt: int, status: str, **fields: Any) -> None:
        import torch
        from tensordict import TensorDict

        values = {name: torch.as_tensor(one)[None] for name, one in fields.items()}
        self.queue.kv_batch_put(
            keys=[str(prompt)], partition_id=PARTITION, fields=TensorDict(values, batch_size=[1]),
            tags=[{"status": status}],
        )  # fmt: skip

    def _poll(self, status: str, count: int) -> list[str]:
        while True:
            there = self.queue.kv_list(partition_id=PARTITION).get(PARTITION, {})
            found = [key for key, tag in there.items() if tag.get("status") == status]
            if len(found) >= count:
                return found[:count]
            time.sleep(POLL_S)

    def put(self, prompt: int, tokens: Any) -> None:
        self._put(prompt, "made", tokens=tokens)

    def grade(self) -> None:
        (key,) = self._poll("made", 1)
        self.queue.kv_batch_get(keys=[key], partition_id=PARTITION)
        self._put(int(key), "graded", reward=int(key) % 5)

    def batch(self, count: int) -> list[Group]:
        keys = self._poll("graded", count)
        self.queue.kv_batch_get(keys=keys, partition_id=PARTITION)
        return [{"prompt": int(key), "reward": int(key) % 5} for key in keys]

    def done(self, batch: list[Group]) -> None:
        keys = [str(one["prompt"]) for one in batch]
        self.queue.kv_clear(keys=keys, partition_id=PARTITION)

    def empty(self) -> None:
        there = self.queue.kv_list(partition_id=PARTITION).get(PARTITION, {})
        if there:
            self.queue.kv_clear(keys=list(there), partition_id=PARTITION)


def play(role: str, box: Any, book: str) -> None:
    """Do what a process does until it is killed; a learner ends when it has had all prompts."""
    box.attach()
    path = Path(book)
    seen = json.loads(path.read_text()) if path.exists() else []
    while role != "learner" or len(set(seen)) < PROMPTS:
        if role == "generator":
            prompt = box.prompts.get()
            time.sleep(2 * MEMBER_S)
            box.put(prompt, np.full(2 + prompt % 5, prompt, np.int32))
        elif role == "grader":
            box.grade()
        else:
            batch = box.batch(BATCH)
            time.sleep(STEP_S)
            seen += [one["prompt"] for one in batch]
            path.with_suffix(".new").write_text(json.dumps(seen))
            os.replace(path.with_suffix(".new"), path)
            box.done(batch)


def round_of(box: Any, seed: int) -> Figures:
    """Play one round; return what was lost and doubled, and whether the learner waits for ever."""
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        book = Path(folder, "book")
        for prompt in range(PROMPTS):
            box.prompts.put(prompt)

        def start(role: str) -> Any:
            process = SPAWN.Process(target=play, args=(role, box, str(book)), daemon=True)
            process.start()
            return process

        processes = [start(role) for role in ROLES]
        try:
            _wait_for(book, 60.0, processes[-1])
            for _ in range(KILLS):
                time.sleep(chance.uniform(0.02, 0.6))
                place = chance.randrange(len(ROLES))
                if processes[-1].exitcode == 0:
                    break
                os.kill(processes[place].pid, signal.SIGKILL)
                processes[place].join()
                processes[place] = start(ROLES[place])
            while _wait_for(book, box.IDLE_S, processes[-1]):
                pass
            stuck = processes[-1].exitcode != 0
        finally:
            for one in processes:
                one.kill()
                one.join()
        seen = json.loads(book.read_text()) if book.exists() else []
    return {
        "rounds": 1, "lost": PROMPTS - len(set(seen)), "doubled": len(seen) - len(set(seen)),
        "stuck": int(stuck),
    }  # fmt: skip


def _wait_for(book: Path, seconds: float, learner: Any) -> bool:
    """Return whether a book was written within these seconds, unless its learner ends."""

    def written() -> int:
        return book.stat().st_mtime_ns if book.exists() else 0

    before, end = written(), time.monotonic() + seconds
    while time.monotonic() < end and learner.exitcode is None:
        if written() != before:
            return True
        time.sleep(0.005)
    return False


def _rounds(seconds: float, one: Callable[[int], Figures]) -> Figures:
    found: dict[str, Any] = {"rounds": 0, "lost": 0, "doubled": 0, "stuck": 0}
    seed, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        seed += 1
        for name, value in one(seed).items():
            found[name] += value
    return {"kept": 100 - 100 * found["lost"] / (PROMPTS * found["rounds"]), **found}


def plain_queue(seconds: float) -> Figures:
    """Each round has new queues: a process that is killed in `get` keeps the lock."""
    return _rounds(seconds, lambda seed: round_of(PlainQueues(), seed))


def transfer_queue(seconds: float) -> Figures:
    box = TransferQueues()
    box.attach()

    def one(seed: int) -> Figures:
        box.prompts = SPAWN.Queue()
        found = round_of(box, seed)
        box.empty()
        return found

    return _rounds(seconds, one)


def ours(seconds: float) -> Figures:
    sys.path.insert(0, str(ROOT / "tests" / "rollouts"))
    from play import Round

    def one(seed: int) -> Figures:
        played = Round(seed)
        for wrong in played.play():
            print(f"seed {seed}: {wrong}", file=sys.stderr)
        return {"rounds": 1, **played.counts}

    return _rounds(seconds, one)


OURS = "async_loader, feeder killed too"
ROW = Row(
    "kills",
    f"rollouts: kill -9 at {KILLS} random moments of {PROMPTS} prompts",
    (
        Metric("kept", "% of the prompts are trained, or filtered", "higher"),
        Metric("lost", "prompts are not", digits=0),
        Metric("doubled", "trained twice", digits=0),
        Metric("stuck", "rounds that wait for ever", digits=0),
        Metric("rounds", "rounds", "higher", digits=0),
    ),
    (
        Contender(OURS, "project", ours),
        Contender("TransferQueue, polled", "transfer-queue", transfer_queue),
        Contender("multiprocessing.Queue", "project", plain_queue),
    ),
    (
        Target("no prompt is lost", "lost", 0, OURS),
        Target("no prompt is trained twice", "doubled", 0, OURS),
        Target("no round waits for ever", "stuck", 0, OURS),
    ),
    seconds=240.0,
    repeats=1,
)

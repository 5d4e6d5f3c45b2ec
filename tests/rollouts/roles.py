"""What the processes of a round do: ``python roles.py ROLE ADDRESS FOLDER PROMPTS``."""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path

import numpy as np

from async_loader import Field, Ragged, connect
from async_loader.lifecycle import Deadline, Patience
from async_loader.source import END

SCHEMA = {
    "tokens": Ragged("int32"),
    "version": Ragged("int32"),
    "reward": "float32",
    "answer": Field((), "int32", scope="group"),
}
SETTINGS = {"batch": 4, "max_lag": 2, "size": 2, "deadline_s": 20.0, "tries": 50}
TIMEOUT_S = 120.0


def pause(seconds):
    threading.Event().wait(seconds)


def generator(client, folder, prompts):
    table = client.table("math")
    for group in table.groups(range(prompts), timeout_s=TIMEOUT_S):
        while group.missing:
            pause(0.02)
            tokens = np.full(1 + group.prompt % 5, group.prompt, np.int32)
            group.append(tokens=tokens, version=np.full(len(tokens), group.version))
        group.update(answer=group.prompt)


def grader(client, folder, prompts):
    for member in client.table("math").members(["tokens"], ["reward"], timeout_s=TIMEOUT_S):
        member.update(reward=member["answer"] % 5)


def learner(client, folder, prompts):
    """Trains, and saves its own state (what it has trained) and the table as one cut."""
    table, ledger = client.table("math"), Path(folder) / "ledger.json"
    state = {"cut": 0, "step": 0, "trained": []}
    if ledger.exists():
        state = json.loads(ledger.read_text())
        if state["cut"]:
            table.load(f"cut-{state['cut']}", timeout_s=TIMEOUT_S)
    source = table.source(needs=["reward"], keep=lambda group: group["reward"].min() > 0)
    while True:
        plan = source.plan(4, Patience(deadline=Deadline(TIMEOUT_S)))
        if plan is END:
            break
        assert source.hand_out(plan.lease)
        batch = plan.batch
        assert batch["lag"].max() <= SETTINGS["max_lag"]
        assert (batch["reward"] > 0).all()
        numbers = batch["prompt_index"].tolist()
        expected = np.repeat(np.array(numbers)[batch["group"]], np.diff(batch["offsets"]))
        assert (batch["tokens"] == expected).all()
        pause(0.005)
        state["trained"] += numbers
        state["step"] += 1
        client.publish("policy", {"w": np.zeros(1)}, version=state["step"])
        if state["step"] % 3 == 0:
            state["cut"] += 1
            table.save(f"cut-{state['cut']}", timeout_s=TIMEOUT_S)
            keep(ledger, state)
    last, deadline = table.stats(), Deadline(30)
    while last.drawn < prompts and not deadline.expired:  # a feeder from a save: generators ask it
        pause(0.02)
        last = table.stats()
    state["stats"] = {one: getattr(last, one) for one in ("drawn", "trained", "ended", "free")}
    state["over"] = True
    keep(ledger, state)
    source.close()


def keep(ledger, state):
    beside = ledger.with_suffix(".new")
    beside.write_text(json.dumps(state))
    os.replace(beside, ledger)


if __name__ == "__main__":
    role, address, place, count = sys.argv[1:]
    with connect(address, timeout_s=TIMEOUT_S, name=role) as one:
        globals()[role](one, place, int(count))
        while role != "learner":  # a learner that goes on from its cut brings prompts back
            pause(0.02)
            globals()[role](one, place, int(count))

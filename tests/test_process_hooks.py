"""Hooks of forks: one registry, one order."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import os
from async_loader.process_hooks import ForkStep, at_fork

seen = []
for step in sorted(ForkStep, key=lambda step: step.value % 2):
    at_fork(step, lambda: 1 / 0)  # which does not keep the others from being called
    at_fork(
        step,
        lambda name=step.name: seen.append(f"before {name}"),
        lambda name=step.name: seen.append(f"parent {name}"),
        lambda name=step.name: seen.append(f"child {name}"),
    )
read, write = os.pipe()
pid = os.fork()
if not pid:
    os.write(write, " | ".join(seen).encode())
    os._exit(0)
os.waitpid(pid, 0)
print(os.read(read, 65536).decode())
print(" | ".join(seen))
"""


def test_hooks_run_in_the_order_of_their_steps_whatever_was_registered_first():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=True
    )
    steps = ["IMPORTS", "KERNELS", "TABLES", "LOADERS"]
    before = [f"before {step}" for step in steps]
    child, parent = (line.split(" | ") for line in done.stdout.splitlines())
    assert child == before + [f"child {step}" for step in reversed(steps)]
    assert parent == before + [f"parent {step}" for step in reversed(steps)]


def test_a_thread_that_goes_on_when_the_main_thread_has_ended_can_load_all_of_the_package():
    program = """
import threading
import async_loader

def run():
    threading.main_thread().join()
    with async_loader.connect("embedded", tables={"t": 10}) as client:
        with client.table("t").writer() as writer:
            writer.append(x=1)
        batch = client.table("t").sample(2, batch_format="torch")
    loader = async_loader.DataLoader(range(6), 2, num_workers=1)
    print(batch["x"].tolist(), [one.tolist() for one in loader])

threading.Thread(target=run).start()
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=280, check=True
    )
    assert (done.stdout, done.stderr) == ("[1, 1] [[0, 1], [2, 3], [4, 5]]\n", "")

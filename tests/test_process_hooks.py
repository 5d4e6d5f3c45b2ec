"""What runs when a process ends."""

from __future__ import annotations

import subprocess
import sys


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

"""What works on every system: ``play.py [ADDRESS]``, of a feeder with a table ``replay`` and
weights ``policy`` at version 3. With LIKE in the environment, this process becomes that system.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

if "LIKE" in os.environ:
    sys.path.insert(0, str(Path(__file__).parent))
    import elsewhere  # noqa: F401

import numpy as np

import async_loader
from async_loader import AsyncDataLoader, Field, ReplayBuffer, Schema, connect
from async_loader.errors import Unsupported

STEP = {"obs": Field((4,), "float32", next="next_obs"), "reward": "float32", "terminated": "bool"}


def job() -> dict[str, Any]:
    return {"x": np.zeros(3)}


def refusal(make: Callable[[], Any]) -> str:
    try:
        make()
    except Unsupported as error:
        return str(error)
    raise AssertionError("it was made")


def client(address: str) -> None:
    with connect(address, name="actor") as feeder:
        weights = feeder.latest("policy", timeout_s=20)
        assert weights.version == 3
        with feeder.table("replay").writer(schema=STEP) as writer:
            for t in range(40):
                obs = np.full(4, t, np.float32)
                ends = t % 10 == 9
                writer.append(obs=obs, reward=1.0, terminated=ends, final_obs=obs if ends else None)
        batch = feeder.table("replay").sample(8)
        assert batch["next_obs"].shape == (8, 4)


def main() -> None:
    for name in async_loader.__all__:
        getattr(async_loader, name)
    assert Schema.of(STEP)
    for make in (
        lambda: ReplayBuffer(100),
        lambda: connect("embedded"),
        lambda: AsyncDataLoader(lambda size: [job] * size, 4, num_workers=2),
    ):
        assert "needs Linux" in refusal(make)
    if len(sys.argv) > 1:
        client(sys.argv[1])
    print("all works")


if __name__ == "__main__":
    main()

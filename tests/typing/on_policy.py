"""A queue: each step is used once, in order, and actors wait while the learner is behind."""

from __future__ import annotations

import threading

from async_loader import END, AsyncDataLoader, ReplayBuffer


def main() -> None:
    with ReplayBuffer.queue(64, {"obs": "float32", "reward": "float32"}) as rollouts:

        def act() -> None:
            for t in range(192):
                rollouts.add(obs=float(t), reward=1.0, timeout_s=60)

        actor = threading.Thread(target=act)
        actor.start()
        seen: list[float] = []
        with AsyncDataLoader(rollouts, 32, prefetch=1, timeout_s=60) as loader:
            for _ in range(6):
                seen += next(loader)["obs"].tolist()
        actor.join(60)
    assert seen == [float(t) for t in range(192)]
    assert repr(END) == "END"


if __name__ == "__main__":
    main()

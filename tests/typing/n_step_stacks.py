"""n-step returns over stacked frames from a vector of environments, with a limit on how often
steps are sampled.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from async_loader import AsyncDataLoader, Field, RateLimiter, ReplayBuffer, Transitions

Frames = npt.NDArray[np.uint8]
Flags = npt.NDArray[np.bool_]


class Envs:
    """Two environments of five steps, in the manner of ``gymnasium.vector``."""

    num_envs = 2
    metadata = {"autoreset_mode": "next_step"}  # noqa: RUF012

    def __init__(self) -> None:
        self.t = 0

    def reset(self) -> tuple[Frames, dict[str, object]]:
        return np.zeros((2, 8, 8), np.uint8), {}

    def step(
        self, action: npt.NDArray[np.int64]
    ) -> tuple[Frames, npt.NDArray[np.float32], Flags, Flags, dict[str, object]]:
        self.t += 1
        frames = np.full((2, 8, 8), self.t % 6, np.uint8)
        ends = np.full(2, self.t % 6 == 5)
        return frames, np.ones(2, np.float32), ends, np.zeros(2, bool), {}


def main() -> None:
    schema = {
        "obs": Field((8, 8), "uint8", stack=4, next="next_obs"),
        "action": "int64",
        "reward": "float32",
    }
    with ReplayBuffer(
        1_000,
        schema | {"terminated": Field((), "bool"), "truncated": Field((), "bool")},
        view=Transitions(n_steps=3, gamma=0.99),
        limiter=RateLimiter(min_size_to_sample=20, samples_per_insert=8),
    ) as buffer:
        envs = Envs()
        obs, _ = envs.reset()
        with (
            buffer.vector_writer(envs) as writer,
            AsyncDataLoader(buffer, 16, prefetch=1, timeout_s=60) as loader,
        ):
            for _ in range(40):
                action = np.zeros(2, np.int64)
                next_obs, reward, terminated, truncated, info = envs.step(action)
                writer.append(
                    obs=obs,
                    action=action,
                    reward=reward,
                    next_obs=next_obs,
                    terminated=terminated,
                    truncated=truncated,
                    info=info,
                )
                obs = next_obs
                if len(buffer) >= 30:
                    batch = next(loader)
        assert batch["obs"].shape == batch["next_obs"].shape == (16, 4, 8, 8)
        assert batch["discount"].shape == (16,)


if __name__ == "__main__":
    main()

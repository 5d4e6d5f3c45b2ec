"""A DQN loop: one thread steps an environment and learns from a table."""

from __future__ import annotations

import numpy as np
import torch

from async_loader import Field, ReplayBuffer


def main() -> None:
    rng = np.random.default_rng(0)
    network = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    buffer = ReplayBuffer(
        10_000,
        {
            "obs": Field(4, next="next_obs"),
            "action": "int64",
            "reward": "float32",
            "terminated": "bool",
        },
    )
    obs = rng.random(4)
    for t in range(200):
        action = int(network(torch.as_tensor(obs, dtype=torch.float32)).argmax())
        next_obs, terminated = rng.random(4), t % 20 == 19
        final_obs = next_obs if terminated else None
        buffer.add(
            obs=obs,
            action=action,
            reward=float(next_obs[action]),
            terminated=terminated,
            final_obs=final_obs,
        )
        obs = rng.random(4) if terminated else next_obs
        if len(buffer) < 64:
            continue
        batch = buffer.sample(32, batch_format="torch")
        with torch.no_grad():
            best = network(batch["next_obs"]).max(1).values
        target = batch["reward"] + 0.99 * best * ~batch["terminated"]
        value = network(batch["obs"]).gather(1, batch["action"][:, None])[:, 0]
        loss = torch.nn.functional.mse_loss(value, target)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    buffer.close()


if __name__ == "__main__":
    main()

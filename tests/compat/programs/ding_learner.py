"""A learner in the style of DI-engine: trajectories of an actor, a loader in front of the
policy, a cursor over batches.
"""

import torch
from ding.utils.data import AsyncDataLoader, default_collate, default_decollate

OBS, ACTIONS = 4, 2


class Policy:
    def __init__(self, device):
        self.model = torch.nn.Linear(OBS, ACTIONS).to(device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.device = device

    def forward_learn(self, data):
        data = default_collate(data, cat_1dim=True, ignore_prefix=["collate_ignore"])
        q = self.model(data["obs"]).gather(1, data["action"].unsqueeze(1)).squeeze(1)
        loss = (data["weight"] * (q - data["reward"]) ** 2).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return {"total_loss": loss.item(), "max_priority": max(data["collate_ignore_priority"])}

    def forward_eval(self, obs):
        with torch.no_grad():
            return default_decollate(
                {"action": self.model(obs).argmax(1), "logit": self.model(obs)}
            )


def step(i):
    obs = torch.full((OBS,), i / 50)
    return {
        "obs": obs,
        "action": torch.tensor([i % ACTIONS]),
        "reward": obs.sum().item(),
        "weight": 1.0,
        "collate_ignore_priority": i,
    }


class Buffer:
    def __init__(self, size):
        self.steps = [step(i) for i in range(size)]

    def sample(self, batch_size):
        return [self.steps[i] for i in torch.randint(len(self.steps), (batch_size,)).tolist()]


def main(num_workers=0, iterations=20):
    torch.manual_seed(0)
    policy, buffer = Policy("cpu"), Buffer(50)
    dataloader = AsyncDataLoader(
        buffer.sample, 8, "cpu", chunk_size=4, collate_fn=lambda x: x, num_workers=num_workers
    )  # fmt: skip
    losses = []
    for _ in range(iterations):
        data = next(dataloader)
        if data is None:
            break
        losses.append(policy.forward_learn(data)["total_loss"])
    dataloader.close()
    assert next(dataloader) is None
    actions = policy.forward_eval(torch.zeros(3, OBS))
    return losses, actions


if __name__ == "__main__":
    losses, actions = main()
    print(losses[0], losses[-1], len(actions))

"""The Q network and the double-DQN update, on tensors only."""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from async_loader.demo.settings import DqnSettings


class QNetwork(nn.Module):
    """Two hidden layers: float32 [batch, len(obs_scale)] -> float32 [batch, num_actions].

    A value of 1 stands for a pole that never falls. The network starts there: unknown states look
    good, and the values need not climb from 0 first, which takes most of the time of bootstrapping.
    """

    scale: Tensor

    def __init__(self, obs_scale: Sequence[float], num_actions: int, hidden: int) -> None:
        super().__init__()
        last = nn.Linear(hidden, num_actions)
        nn.init.ones_(last.bias)
        self.layers = nn.Sequential(
            nn.Linear(len(obs_scale), hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), last
        )
        self.register_buffer("scale", torch.tensor(obs_scale, dtype=torch.float32))

    def forward(self, obs: Tensor) -> Tensor:
        values: Tensor = self.layers(obs / self.scale)
        return values


def double_dqn_target(
    reward: Tensor, terminated: Tensor, next_online: Tensor, next_target: Tensor, discount: float
) -> Tensor:
    """Return the target of Q(s, a): r + gamma (1 - terminated) Q_target(s', argmax_a Q_online(s',
    a)).

    van Hasselt, Guez, Silver 2016, "Deep reinforcement learning with double Q-learning", equation
    4. Only `terminated` cuts the future off. A truncated episode (CartPole's step 500) is merely no
       longer observed; the pole
    still stands, so its value is bootstrapped like any other.

    Parameters
    ----------
    reward, terminated : Tensor
        float32 [batch] and bool [batch].
    next_online, next_target : Tensor
        float32 [batch, actions]: both networks' values of the next observation.
    discount : float
        Gamma.

    Returns
    -------
    Tensor
        float32 [batch].
    """
    best = next_online.argmax(dim=1, keepdim=True)
    future = next_target.gather(1, best).squeeze(1)
    return torch.where(terminated, reward, reward + discount * future)


@contextlib.contextmanager
def one_torch_thread() -> Iterator[None]:
    """Keep torch from splitting such small products over the cores.

    Every thread that computes must enter it.

    OpenMP counts per thread: the setting of the main thread leaves a new one with a team as large
    as the machine, whose members then spin on the core that the others need (measured: 0.75 ms of
    CPU time instead of 0.17 for one forward).
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Learner:
    """An online network, two slowly following averages of it, and the optimizer.

    Used by one thread.

    Attributes
    ----------
    policy : QNetwork
        The network of the actors. A single update may unlearn balancing at the edge; the average of
        the latest hundred does not.
    """

    def __init__(self, num_actions: int, settings: DqnSettings) -> None:
        self.online = QNetwork(settings.obs_scale, num_actions, settings.hidden)
        self.target = copy.deepcopy(self.online).requires_grad_(False)
        self.policy = copy.deepcopy(self.target)
        self.updates = 0
        self._settings = settings
        self._online_weights: list[Tensor] = list(self.online.parameters())
        self._target_weights: list[Tensor] = list(self.target.parameters())
        self._policy_weights: list[Tensor] = list(self.policy.parameters())
        self._optimizer = torch.optim.Adam(
            self._online_weights, lr=settings.learning_rate, fused=True
        )

    def update(self, batch: Mapping[str, Tensor]) -> None:
        """Make one gradient step on obs, action, reward, next_obs, terminated, each [batch, ...];
        update both averages.
        """
        # (1 - gamma) scales an endless reward of 1 to a value of 1.
        unit = 1.0 - self._settings.discount
        with torch.no_grad():
            goal = double_dqn_target(
                batch["reward"] * unit,
                batch["terminated"],
                self.online(batch["next_obs"]),
                self.target(batch["next_obs"]),
                self._settings.discount,
            )
        value = self.online(batch["obs"]).gather(1, batch["action"].unsqueeze(1)).squeeze(1)
        # Huber loss, not squares: one surprising fall must not disturb the whole network.
        loss = nn.functional.smooth_l1_loss(value, goal)
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        self._set_learning_rate()
        self._optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_(
                self._target_weights, self._online_weights, self._settings.target_rate
            )
            torch._foreach_lerp_(
                self._policy_weights, self._online_weights, self._settings.policy_rate
            )
        self.updates += 1

    def _set_learning_rate(self) -> None:
        settings = self._settings
        left = 0.5 + 0.5 * math.cos(math.pi * min(1.0, self.updates / settings.decay_updates))
        rate = settings.final_learning_rate + left * (
            settings.learning_rate - settings.final_learning_rate
        )
        self._optimizer.param_groups[0]["lr"] = rate

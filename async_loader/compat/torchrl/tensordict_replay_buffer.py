"""TorchRL's TensorDictReplayBuffer, and its buffers with priorities, on a table."""

from __future__ import annotations

from typing import Any

import torch

from async_loader.compat.torchrl.replay_buffer import ReplayBuffer
from async_loader.compat.torchrl.samplers import PrioritizedSampler
from async_loader.errors import ConfigError


class TensorDictReplayBuffer(ReplayBuffer):
    """As ``torchrl.data.TensorDictReplayBuffer``: steps are TensorDicts.

    What is added and what is drawn gets the entry ``index``; what is drawn also
    ``priority_weight``, where the sampler has weights.

    Parameters
    ----------
    priority_key : str
        The entry of the priority, which is not stored. With more than one number a step, the
        largest counts.
    **kwargs
        As `ReplayBuffer`.
    """

    _kind = "tensordict"

    def __init__(self, *, priority_key: str = "td_error", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.priority_key = priority_key

    def add(self, data: Any) -> int:
        """As `ReplayBuffer.add`; ``data`` gets its ``index``."""
        index = super().add(data)
        data.set("index", torch.tensor(index))
        return index

    def extend(self, data: Any, *, update_priority: bool | None = None) -> torch.Tensor:
        """As `ReplayBuffer.extend`; ``data`` gets the entry ``index``."""
        if isinstance(data, list):
            data = torch.stack(data)
        index = super().extend(data, update_priority=update_priority)
        shape = (-1, *(1 for _ in data.batch_size[1:]))
        data.set("index", index.reshape(shape).expand(data.batch_size).clone())
        return index

    def update_tensordict_priority(self, data: Any) -> None:
        """Change priorities to the entry `priority_key` of a batch with its ``index``."""
        if self.table.sampler.prioritized:
            count = data.batch_size[0] if data.batch_size else 1
            index = data.get("index").reshape(count, -1)[:, 0]
            self.update_priority(index, self._priority(data, bool(data.batch_size)))

    def sample(self, batch_size: int | None = None, return_info: bool = False) -> Any:
        """As `ReplayBuffer.sample`; the TensorDict has ``index`` and ``priority_weight``."""
        batch, info = self._draw(batch_size)
        for name, value in info.items():
            batch.set(name, value)
        for one in self._transforms:
            batch = one(batch)
        return (batch, info) if return_info else batch

    def _step(self, data: Any) -> dict[str, Any]:
        if not hasattr(data, "to_dict"):
            raise ConfigError(
                f"{type(data).__name__}: a TensorDictReplayBuffer takes TensorDicts, ReplayBuffer "
                "also dicts and tensors"
            )
        return super()._step(data.exclude(self.priority_key))

    def _priority(self, data: Any, many: bool) -> Any:
        given = data.get(self.priority_key, None)
        if given is None or not self.table.sampler.prioritized:
            return None
        given = given.detach().abs()
        return given.reshape(len(given), -1).amax(dim=1) if many else float(given.amax())


class PrioritizedReplayBuffer(ReplayBuffer):
    """As ``torchrl.data.PrioritizedReplayBuffer``: a `ReplayBuffer` with a `PrioritizedSampler`.

    Parameters
    ----------
    alpha, beta, eps : float
        As of `PrioritizedSampler`.
    **kwargs
        As `ReplayBuffer`, without ``sampler``.
    """

    def __init__(self, *, alpha: float, beta: float, eps: float = 1e-8, **kwargs: Any) -> None:
        super().__init__(sampler=PrioritizedSampler(0, alpha, beta, eps), **kwargs)


class TensorDictPrioritizedReplayBuffer(TensorDictReplayBuffer):
    """As ``torchrl.data.TensorDictPrioritizedReplayBuffer``: a `TensorDictReplayBuffer` with a
    `PrioritizedSampler`.

    Parameters
    ----------
    alpha, beta, eps, reduction
        As of `PrioritizedSampler`.
    **kwargs
        As `TensorDictReplayBuffer`, without ``sampler``.
    """

    def __init__(
        self,
        *,
        alpha: float,
        beta: float,
        eps: float = 1e-8,
        reduction: str = "max",
        **kwargs: Any,
    ) -> None:
        order = PrioritizedSampler(0, alpha, beta, eps, reduction=reduction)
        super().__init__(sampler=order, **kwargs)

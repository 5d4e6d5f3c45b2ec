"""TorchRL's samplers, as those of a table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from async_loader.errors import ConfigError
from async_loader.replay.array_types import Array, Bools, Ids
from async_loader.replay.samplers import Draw, Fifo, Prioritized, Uniform
from async_loader.replay.samplers.sampler import Priorities, Rows, Sampler

_NO_ROWS = np.empty(0, np.int64)
Key = str | tuple[str, ...]


class SamplerWithoutReplacement(Fifo):
    """Every step once, in passes. A write or a removal begins a new one, as does a draw of more
    steps than the pass has left.

    Cost: O(steps) a pass.

    Parameters
    ----------
    drop_last : bool
        Whether the steps that are left at a pass's end, fewer than a batch, are not drawn.
    shuffle : bool
        Whether passes are in random order, not in that of writing.

    Attributes
    ----------
    left : int64 array
        Rows that this pass has not drawn yet. Empty: it is over.
    fresh : bool
        Whether the next draw begins a pass.
    """

    def __init__(self, drop_last: bool = False, shuffle: bool = True) -> None:
        super().__init__()
        self.drop_last, self.shuffle = drop_last, shuffle
        self.left: Rows = _NO_ROWS
        self.fresh, self._restored = True, False

    def insert(self, rows: Rows, priority: Priorities) -> None:
        super().insert(rows, priority)
        self.fresh, self._restored = not self._restored, False

    def remove(self, rows: Rows) -> None:
        super().remove(rows)
        self.fresh = True

    def most(self, count: int) -> int:
        """Return how many of ``count`` steps the next draw has."""
        left = (0 if self.fresh else len(self.left)) or self._items.count
        return count if self.drop_last else min(count, left)

    def is_over(self, count: int) -> bool:
        """Return whether the pass has no more batches of ``count`` steps."""
        return not self.fresh and len(self.left) < (count if self.drop_last else 1)

    def draw(self, count: int) -> Draw:
        if self.fresh or count > len(self.left):
            self.left = super().draw(self._items.count).rows
            if self.shuffle:
                order = np.argsort(self._numbers.take(len(self.left)), kind="stable")
                self.left = self.left[order]
        rows, self.left = self.left[:count], self.left[count:]
        self.fresh = False
        return Draw(rows)

    def state(self) -> dict[str, Any]:
        return {
            **super().state(),
            "left": self.left.tolist(),
            "fresh": self.fresh,
            "rows": self._items.rows,
        }

    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        # in a table of another size rows lie elsewhere: a new pass begins
        same = state["rows"] == self._items.rows
        self.left = np.array(state["left"] if same else [], np.int64)
        self.fresh = bool(state["fresh"]) or not same
        self._restored = not self.fresh  # the items that are there come next

    def __repr__(self) -> str:
        return f"SamplerWithoutReplacement(drop_last={self.drop_last}, shuffle={self.shuffle})"


class SliceSampler:
    """Parts of trajectories, one behind the other: ``num_slices`` in a batch, or as many of
    ``slice_len`` steps as make a batch.

    Each is of a trajectory that is drawn uniformly, and begins at a step of it that is drawn
    uniformly. Cost: O(steps in the buffer) a batch, or with ``cache_values`` after each write.

    Parameters
    ----------
    num_slices, slice_len : int, optional
        One of the two.
    end_key, end_keys : str | tuple of str, and a sequence of them, optional
        Entries that are true at a trajectory's last step, ``("next", "done")`` by default.
    traj_key : str | tuple of str, optional
        The entry with the number of a step's trajectory; unless given or ``end_key`` is,
        ``("collector", "traj_ids")`` or ``"episode"`` where steps have them.
    cache_values : bool
        Whether trajectories are looked for after a write alone.
    truncated_key : str | tuple of str | None
        The entry of a batch that is true at each slice's last step; ``done`` beside it too.
    init_key : str | tuple of str | None
        The entry, where steps have it, that becomes true at each slice's first step.
    strict_length : bool
        Whether trajectories that are shorter than a slice are left out, not shown whole.
    **others
        Arguments of TorchRL's that change what is drawn are refused.

    Raises
    ------
    ConfigError
    """

    def __init__(
        self,
        *,
        num_slices: int | None = None,
        slice_len: int | None = None,
        end_key: Key | None = None,
        end_keys: Any = None,
        traj_key: Key | None = None,
        cache_values: bool = False,
        truncated_key: Key | None = ("next", "truncated"),
        init_key: Key | None = "is_init",
        strict_length: bool = True,
        **others: Any,
    ) -> None:
        if (num_slices is None) == (slice_len is None):
            raise ConfigError("a SliceSampler takes one of num_slices and slice_len")
        for name in ("pad_output", "span", "fragmented", "ends", "trajectories"):
            given = others.get(name)
            if given is not None and np.any(given):
                raise ConfigError(f"{name}= of TorchRL's SliceSampler is not here: leave it out")
        self.num_slices, self.slice_len = num_slices, slice_len
        self._ends = tuple(map(dotted, end_keys or (end_key or ("next", "done"),)))
        self._trajectories = (
            (dotted(traj_key),)
            if traj_key is not None
            else ()
            if end_key or end_keys
            else ("collector.traj_ids", "episode")
        )
        self.cache_values, self.strict_length = cache_values, strict_length
        self.truncated_key, self.init_key = truncated_key, init_key
        self._known: tuple[object, Ids] = None, _NO_ROWS

    def draw(
        self,
        count: int,
        ids: Ids,
        version: object,
        column: Callable[[str, Ids], Array | None],
        random: np.random.Generator,
    ) -> tuple[Ids, Ids]:
        """Draw slices. Return the ids of their steps, and the length of each.

        Parameters
        ----------
        count : int
            Steps of a batch.
        ids : int64 array
            All steps, the oldest first.
        version : object
            Changes with each write.
        column : callable
            Returns a field of steps by its dotted name and their ids; ``None``: they have none.
        random : Generator

        Raises
        ------
        ConfigError
            If ``count`` is no multiple, or no trajectory is long enough.
        """
        parts = self.num_slices or count // (self.slice_len or 1)
        length = self.slice_len or count // parts
        if not count or parts * length != count:
            raise ConfigError(
                f"a batch of {count} steps is no multiple of the {self.num_slices or length} "
                f"{'slices' if self.num_slices else 'steps of a slice'}: change batch_size"
            )
        starts, lengths = self._starts(ids, version, column)
        if self.strict_length:
            enough = lengths >= length
            if not enough.any():
                raise ConfigError(
                    f"slices have {length} steps, and the longest trajectory {lengths.max()}: add "
                    "steps, or use a shorter slice or strict_length=False"
                )
            starts, lengths = starts[enough], lengths[enough]
        which = random.integers(len(starts), size=parts)
        shown = np.minimum(lengths[which], length)
        first = starts[which] + random.integers(lengths[which] - shown + 1)
        within = np.arange(shown.sum()) - np.repeat(np.cumsum(shown) - shown, shown)
        return ids[np.repeat(first, shown) + within], shown

    def _starts(
        self, ids: Ids, version: object, column: Callable[[str, Ids], Array | None]
    ) -> tuple[Ids, Ids]:
        """Return where trajectories begin among ``ids``, and how many steps they have."""
        if not self.cache_values or self._known[0] != version:
            last = np.diff(ids, append=-1) != 1
            last[:-1] |= self._changes(ids, column)
            self._known = version, np.concatenate(([0], np.flatnonzero(last) + 1))
        bounds = self._known[1]
        return bounds[:-1], np.diff(bounds)

    def _changes(self, ids: Ids, column: Callable[[str, Ids], Array | None]) -> Bools:
        """Return for each step but the last whether the next one is of another trajectory."""
        for name in self._trajectories:
            values = column(name, ids)
            if values is not None:
                flat = values.reshape(len(ids), -1)
                changes: Bools = np.any(flat[1:] != flat[:-1], axis=1)
                return changes
        found = [values for name in self._ends if (values := column(name, ids)) is not None]
        if not found:
            raise ConfigError(
                f"steps have none of the entries {', '.join(self._trajectories + self._ends)}: "
                "give end_key= or traj_key="
            )
        every = [np.any(one.reshape(len(ids), -1)[:-1], axis=1) for one in found]
        ends: Bools = np.any(every, axis=0)
        return ends

    def marks(self, lengths: Ids, entry: Callable[[Key], Array | None]) -> dict[Key, Array]:
        """Return the entries that say where the slices of a batch begin and end.

        ``entry``: returns one that the steps have.
        """
        made: dict[Key, Array] = {}
        total = int(lengths.sum())
        last, first = np.zeros(total, np.bool_), np.zeros(total, np.bool_)
        last[np.cumsum(lengths) - 1] = True
        first[np.cumsum(lengths) - lengths] = True

        def mark(key: Key, at: Bools, old: Array | None) -> None:
            shape = (total, 1) if old is None else old.shape
            made[key] = np.broadcast_to(at.reshape(-1, *(1 for _ in shape[1:])), shape).copy()
            if old is not None:
                made[key] |= old.astype(np.bool_)

        if self.truncated_key is not None:
            done, terminated = (beside(self.truncated_key, one) for one in ("done", "terminated"))
            mark(self.truncated_key, last, entry(self.truncated_key))
            mark(done, last, entry(done))
            mark(terminated, np.zeros(total, np.bool_), entry(terminated))
        if self.init_key is not None and (old := entry(self.init_key)) is not None:
            mark(self.init_key, first, old)
        return made


def dotted(key: Key) -> str:
    """Return a key of TorchRL's as the name of a table's field."""
    return key if isinstance(key, str) else ".".join(key)


def beside(key: Key, name: str) -> Key:
    """Return the key of another entry in the same place."""
    return name if isinstance(key, str) else (*key[:-1], name)


def PrioritizedSampler(
    max_capacity: int,
    alpha: float,
    beta: float,
    eps: float = 1e-8,
    dtype: object = None,
    reduction: str = "max",
    max_priority_within_buffer: bool = False,
    device: object = None,
) -> Prioritized:
    """Return the `Prioritized` sampler that draws and weighs as TorchRL's. A ``beta`` above 1
    counts as 1, which corrects all of the bias.

    Raises
    ------
    ConfigError
        For another ``reduction`` than "max".
    """
    if reduction != "max":
        raise ConfigError(f"reduction={reduction!r}: of a step's priorities the largest counts")
    return Prioritized(
        float(alpha),
        min(float(beta), 1.0),
        float(eps),
        normalize="buffer",
        new_priority="max_now" if max_priority_within_buffer else "max_ever",
    )


def RandomSampler(replacement: bool = True, **settings: Any) -> Sampler:
    """Return `Uniform`, or without replacement a `SamplerWithoutReplacement`."""
    return Uniform() if replacement else SamplerWithoutReplacement(**settings)

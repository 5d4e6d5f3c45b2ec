"""The time axis of a batch: checked arrays, which step follows which, backward recursion."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from async_loader import tensors
from async_loader.errors import SchemaError

Array = npt.NDArray[Any]


class Steps:
    """Checked arrays of a batch, and which step follows which.

    Attributes
    ----------
    valid : bool array
        There is a step.
    goes_on : bool array
        The next place holds the next step of the same episode.
    complete : bool array
        The step has a target.
    survives : bool array
        The step did not terminate.
    following : float64 array
        The value behind each step; 0 where it is not known, and behind the end of an episode.
    """

    def __init__(
        self,
        reward: Any,
        terminated: Any,
        truncated: Any,
        mask: Any,
        value: Any,
        next_value: Any,
        bootstrap: Any,
    ) -> None:
        rewards = _array("reward", reward)
        if rewards.ndim != 2 or 0 in rewards.shape:
            raise SchemaError(
                f"reward has shape {list(rewards.shape)}: targets need [batch, time], as batches "
                "of view=Sequences(...) have it; reward[None] is a batch of one"
            )
        self.shape = rewards.shape
        self._dtype = np.float64 if rewards.dtype == np.float64 else np.float32
        valid = self.valid = self._flags("mask", mask, default=True)
        self.reward = np.where(valid, self.numbers("reward", reward), 0.0)
        self.value = (
            np.zeros(self.shape)
            if value is None
            else np.where(valid, self.numbers("value", value), 0.0)
        )
        self.survives = ~self._flags("terminated", terminated, default=False)
        ends = ~self.survives | self._flags("truncated", truncated, default=False)
        goes_on = self.goes_on = valid & ~ends
        goes_on[:, :-1] &= valid[:, 1:]
        goes_on[:, -1] = False
        # chosen, not multiplied: 0 times a NaN of another episode is NaN
        self.following = np.where(goes_on, shifted(self.value), 0.0)
        known = goes_on | (valid & ~self.survives)
        if next_value is not None:
            here = valid & ~known
            self.following[here] = self.numbers("next_value", next_value)[here]
            known |= here
        if bootstrap is not None:
            place = self._last(~ends)
            self.following[place] = self._of_rows("bootstrap", bootstrap)[place[0]]
            known[place] = True
        self.complete = known

    def _last(self, among: Array) -> tuple[Array, Array]:
        """Rows, and the places of their last steps, where those are ``among`` these."""
        rows, time = self.shape
        last = time - 1 - self.valid[:, ::-1].argmax(1)
        every = np.arange(rows)
        row = np.nonzero((self.valid & among)[every, last])[0]
        return row, last[row]

    def _of_rows(self, name: str, given: Any) -> Array:
        values, rows = _array(name, given), self.shape[0]
        if values.shape != (rows,):
            raise SchemaError(
                f"{name} has shape {list(values.shape)}, reward {list(self.shape)}: give one value "
                f"for each of the {rows} rows, [{rows}]"
            )
        return values

    def numbers(self, name: str, given: Any) -> Array:
        """A field as float64 [batch, time]."""
        return self._checked(name, _array(name, given)).astype(np.float64)

    def _flags(self, name: str, given: Any, *, default: bool) -> Array:
        if given is None:
            return np.full(self.shape, default)
        return self._checked(name, _array(name, given)).astype(np.bool_)

    def _checked(self, name: str, array: Array) -> Array:
        if array.shape != self.shape:
            raise SchemaError(
                f"{name} has shape {list(array.shape)}, reward {list(self.shape)}: they must be "
                "equal"
            )
        return array

    def errors(self, gamma: float, value: Array | None = None) -> Array:
        """Temporal difference errors, 0 where there is no target."""
        found: Array = self.reward + gamma * self.following
        found -= self.value if value is None else value
        return np.where(self.complete, found, 0.0)

    def out(self, array: Array) -> Array:
        return array.astype(self._dtype)


def shifted(array: Array) -> Array:
    """What the next place holds; 0 behind the last."""
    found = np.zeros_like(array)
    found[:, :-1] = array[:, 1:]
    return found


def backward(first: Array, factor: Array) -> Array:
    """``x[t] = first[t] + factor[t] * x[t + 1]``: time runs along the rows of memory meanwhile.

    A factor of 0 leaves out what is behind it, also what is not finite.
    """
    found, factors = np.array(first.T, order="C"), np.ascontiguousarray(factor.T)
    scratch = np.empty(found.shape[1])
    with np.errstate(invalid="ignore"):
        for t in range(len(found) - 2, -1, -1):
            np.multiply(factors[t], found[t + 1], out=scratch)
            found[t] += scratch
    if not np.isfinite(found).all():  # rare, and looking at each factor takes longer
        found[...] = first.T
        for t in range(len(found) - 2, -1, -1):
            scratch[...] = 0.0
            np.multiply(factors[t], found[t + 1], out=scratch, where=factors[t] != 0)
            found[t] += scratch
    return found.T


def _array(name: str, given: Any) -> Array:
    if tensors.as_array(given) is None and (text := tensors.unheld(given)) is not None:
        raise SchemaError(f"{name} is {text}")
    try:
        array = tensors.to_array(given)
    except ValueError as error:
        raise SchemaError(f"{name} is no array ({error}): give numbers") from None
    if array.dtype.kind not in "fiub":
        raise SchemaError(f"{name} is {array.dtype}: give numbers")
    return array

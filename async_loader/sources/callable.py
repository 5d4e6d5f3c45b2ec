"""A callable as a source: called with the batch size, once per batch, in the producer thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from async_loader.errors import SchemaError, Unsupported
from async_loader.lifecycle import Patience
from async_loader.names import describe
from async_loader.source import END, Applied, Jobs, Plan, Reader, Ready, Samples


class CallableSource:
    """``function(batch_size)`` gives a list of sample dicts, a list of zero-argument callables, a
    dict of arrays, or END.

    Parameters
    ----------
    function : callable
        Never called concurrently with itself.
    """

    def __init__(self, function: Callable[[int], Any]) -> None:
        self.function = function

    def plan(self, batch_size: int, patience: Patience) -> Plan:
        """Call the function and classify its result.

        Raises
        ------
        SchemaError
            For too few or too many entries, a mixture of jobs and samples, or any other type.
        """
        try:
            data = self.function(batch_size)
        except StopIteration:
            raise StopIteration(f"{self.name} raised it") from None
        if data is END:
            end: Plan = END
            return end
        if isinstance(data, Mapping):
            return Ready(data)
        if isinstance(data, str | bytes) or not isinstance(data, Sequence):
            raise SchemaError(f"{self.name} returned {type(data).__name__}: {EXPECTED}")
        self.check_count(len(data), batch_size)
        jobs = sum(map(callable, data))
        if jobs == len(data):
            return Jobs(data)
        if jobs:
            raise SchemaError(
                f"{self.name} returned {jobs} callables and {len(data) - jobs} other entries: "
                f"{EXPECTED}"
            )
        return Samples(data)

    def check_count(self, count: int, batch_size: int) -> None:
        """Raise SchemaError for too few or too many entries."""
        if count != batch_size:
            raise SchemaError(
                f"{self.name} returned {count} entries, batch_size is {batch_size}: {EXPECTED}"
            )

    @property
    def name(self) -> str:
        return f"data_source {describe(self.function)}"

    def reader(self) -> Reader | None:
        return None

    def update_priorities(self, index: Any, priority: Any) -> Applied:
        raise Unsupported(
            "a callable data_source has no priorities: use a ReplayBuffer with a prioritized "
            "sampler"
        )


EXPECTED = (
    "return batch_size sample dicts, batch_size zero-argument callables, one dict of "
    "arrays, or async_loader.END"
)

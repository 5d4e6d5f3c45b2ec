"""Plans from DI-engine's data_source: any number of dicts, or of callables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from async_loader.errors import SchemaError
from async_loader.lifecycle import Patience
from async_loader.source import END, Jobs, Plan, Ready, Samples
from async_loader.sources.callable import CallableSource


class EntriesSource(CallableSource):
    """``function(batch_size)`` gives dicts or callables; the first entry decides. More or fewer
    than batch_size make a larger or smaller batch.
    """

    def plan(self, batch_size: int, patience: Patience) -> Plan:
        """Call the function and classify its result.

        Raises
        ------
        SchemaError
            For an empty result, and for entries that are neither dicts nor callables.
        """
        data = self.function(batch_size)
        if data is END:
            end: Plan = END
            return end
        if isinstance(data, Mapping):
            return Ready(data)
        if isinstance(data, str | bytes) or not isinstance(data, Sequence) or not len(data):
            what = (
                "an empty list"
                if isinstance(data, Sequence) and not len(data)
                else type(data).__name__
            )
            raise SchemaError(f"{self._name} returned {what}: {_EXPECTED}")
        if isinstance(data[0], Mapping):
            return Samples(data)
        wrong = [number for number, entry in enumerate(data) if not callable(entry)]
        if wrong:
            kind = type(data[wrong[0]]).__name__
            raise SchemaError(
                f"{self._name} returned {kind} as entry {wrong[0]} of {len(data)}: {_EXPECTED}"
            )
        return Jobs(data)


_EXPECTED = "return sample dicts, zero-argument callables, one dict of arrays, or async_loader.END"

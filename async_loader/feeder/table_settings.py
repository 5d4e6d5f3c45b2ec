"""What a table of the feeder is made of, as a file says it. Decides nothing: the replay package's constructors do."""

from __future__ import annotations

import re
import warnings
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta

from async_loader.errors import ConfigError, SchemaError
from async_loader.feeder.reading import Bytes
from async_loader.replay import samplers
from async_loader.replay.arguments import storable
from async_loader.replay.limiter import MinSize, Queue, RateLimiter, check_room
from async_loader.replay.samplers import Sampler
from async_loader.schema import Field, Schema

if TYPE_CHECKING:
    from async_loader.replay.buffer import ReplayBuffer

Normalize = Literal["batch", "buffer", "none"]


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Root of all settings: frozen, by keyword, and no unknown names."""


class _Part(Settings, frozen=True, kw_only=True, tag_field="kind"):
    """A sampler, a schedule or a limiter. Making one is how its settings are checked."""

    def __post_init__(self) -> None:
        with warnings.catch_warnings():  # whoever makes the table is warned
            warnings.simplefilter("ignore", UserWarning)
            self.make()

    def make(self) -> Any:
        raise NotImplementedError

    def _made(self, kind: Any) -> Any:
        values = {name: getattr(self, name) for name in self.__struct_fields__}
        return kind(**{name: value.make() if isinstance(value, _Part) else value for name, value in values.items()})


class LinearSettings(_Part, frozen=True, kw_only=True, tag="linear"):
    """A ``beta`` that goes from ``start`` to ``end`` within so many draws."""

    start: float
    end: float
    draws: int

    def make(self) -> samplers.Linear:
        made: samplers.Linear = self._made(samplers.Linear)
        return made


class UniformSettings(_Part, frozen=True, kw_only=True, tag="uniform"):
    replacement: bool = True

    def make(self) -> Sampler:
        return samplers.Uniform(self.replacement)


class PrioritizedSettings(_Part, frozen=True, kw_only=True, tag="prioritized"):
    alpha: float = 0.6
    beta: float | LinearSettings = 0.4
    eps: float = 1e-6
    stratified: bool = True
    normalize: Normalize = "batch"
    new_priority: Literal["max_ever", "max_now", "given"] = "max_ever"

    def make(self) -> Sampler:
        made: Sampler = self._made(samplers.Prioritized)
        return made


class RankSettings(_Part, frozen=True, kw_only=True, tag="rank"):
    alpha: float = 0.7
    beta: float | LinearSettings = 0.5
    normalize: Normalize = "batch"
    resort_every: int | None = None

    def make(self) -> Sampler:
        made: Sampler = self._made(samplers.RankPrioritized)
        return made


class FifoSettings(_Part, frozen=True, kw_only=True, tag="fifo"):
    def make(self) -> Sampler:
        return samplers.Fifo()


class LifoSettings(_Part, frozen=True, kw_only=True, tag="lifo"):
    def make(self) -> Sampler:
        return samplers.Lifo()


class MinHeapSettings(_Part, frozen=True, kw_only=True, tag="min_heap"):
    def make(self) -> Sampler:
        return samplers.MinHeap()


class MaxHeapSettings(_Part, frozen=True, kw_only=True, tag="max_heap"):
    def make(self) -> Sampler:
        return samplers.MaxHeap()


SamplerSettings = (
    UniformSettings | PrioritizedSettings | RankSettings | FifoSettings | LifoSettings | MinHeapSettings | MaxHeapSettings
)


class MinSizeSettings(_Part, frozen=True, kw_only=True, tag="min_size"):
    """Sampling waits for ``size`` rows; inserting never waits."""

    size: int

    def make(self) -> RateLimiter:
        return MinSize(self.size)


class SamplesPerInsertSettings(_Part, frozen=True, kw_only=True, tag="samples_per_insert"):
    """As `RateLimiter`; ``error_buffer`` is a number or a list of two: the bounds."""

    min_size_to_sample: int
    samples_per_insert: float
    error_buffer: float | tuple[float, float]

    def make(self) -> RateLimiter:
        made: RateLimiter = self._made(RateLimiter)
        return made


class QueueSettings(_Part, frozen=True, kw_only=True, tag="queue"):
    """Each row is sampled once; at most ``size`` wait to be."""

    size: int

    def make(self) -> RateLimiter:
        return Queue(self.size)


class StackSettings(QueueSettings, frozen=True, kw_only=True, tag="stack"):
    """As a queue; for a table whose sampler and remover are ``lifo``."""


LimiterSettings = MinSizeSettings | SamplesPerInsertSettings | QueueSettings | StackSettings


class FieldSettings(Settings, frozen=True, kw_only=True):
    """One array of a step, as `async_loader.schema.Field` has it."""

    dtype: str
    shape: tuple[Annotated[int, Meta(ge=0, le=2**31 - 1)], ...] = ()
    stack: Annotated[int, Meta(ge=1, le=2**20)] = 1
    next: str | None = None
    padding: Literal["repeat", "zero"] = "repeat"

    def __post_init__(self) -> None:
        self.make("")

    def make(self, name: str) -> Field:
        """The field, under its dotted name."""
        return Field(self.shape, self.dtype, stack=self.stack, next=self.next, padding=self.padding, name=name)


class TableSettings(Settings, frozen=True, kw_only=True):
    """One table.

    Parameters
    ----------
    capacity : int, optional
        Steps; in a file also bytes, as in ``8GiB``. This or ``max_bytes`` must be there; with both, the lesser of them.
    max_bytes : int, optional
        Of memory; in a file also as in ``8GiB``.
    sampler, remover : SamplerSettings
        In a file also by the name alone, as in ``sampler: fifo``.
    limiter : LimiterSettings, optional
    max_times_sampled : int
        An item is gone after so many draws; 0 is any number.
    seed : int, optional
    schema : dict of FieldSettings, optional
        By dotted names. A table without one takes the first writer's. In a file a field is also its dtype alone.

    Raises
    ------
    ConfigError, SchemaError
    """

    capacity: Annotated[int, Meta(ge=1)] | None = None
    max_bytes: Bytes | None = None
    sampler: SamplerSettings = UniformSettings()
    remover: SamplerSettings = FifoSettings()
    limiter: LimiterSettings | None = None
    max_times_sampled: Annotated[int, Meta(ge=0)] = 0
    seed: Annotated[int, Meta(ge=0)] | None = None
    schema: dict[str, FieldSettings] | None = None

    def __post_init__(self) -> None:
        if self.capacity is None and self.max_bytes is None:
            raise ConfigError("it needs a capacity (steps), max_bytes, or both")
        if self.limiter is not None and self.capacity is not None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)
                check_room(self.limiter.make(), self.capacity, self.capacity)
        schema = self.step_schema()
        if schema is None or isinstance(self.remover, FifoSettings):
            return
        linked = [field.name for field in schema.fields if field.linked]
        if linked:
            raise ConfigError(
                f"field {linked[0]!r} has stack or next, which needs steps to be removed in order: use remover: fifo, "
                f"not {self.remover.__struct_config__.tag}"
            )

    def step_schema(self) -> Schema | None:
        """The schema of a step, nested as the dotted names say."""
        if self.schema is None:
            return None
        nested: dict[str, Any] = {}
        for name, field in self.schema.items():
            *above, last = name.split(".")
            place = nested
            for key in above:
                place = place.setdefault(key, {})
                if not isinstance(place, dict):
                    raise SchemaError(f"field {name!r} lies in {key!r}, which is a field itself: rename one of them")
            if last in place or not all((*above, last)):
                raise SchemaError(f"field {name!r} has no name of its own: give every field one, as in 'obs.pixels'")
            place[last] = field.make(name)
        return storable(Schema.of(nested))

    def make(self) -> ReplayBuffer:
        """The table, empty; with a schema its memory is taken now.

        Raises
        ------
        OutOfMemory
            If there is a schema, and not so much memory.
        """
        from async_loader.replay.buffer import ReplayBuffer

        size = {"capacity": f"{self.max_bytes}B"} if self.capacity is None else {"capacity": self.capacity}
        bound = self.max_bytes if self.capacity is not None else None
        return ReplayBuffer(
            **size,
            schema=self.step_schema(),
            sampler=self.sampler.make(),
            remover=self.remover.make(),
            limiter=None if self.limiter is None else self.limiter.make(),
            max_times_sampled=self.max_times_sampled,
            seed=self.seed,
            max_bytes=bound,
        )


def sized(text: str) -> dict[str, Any]:
    """``1000000`` (steps) or ``8GiB`` as plain settings of a table."""
    steps = text.strip().replace("_", "")
    return {"capacity": int(steps)} if re.fullmatch(r"[0-9]+", steps) else {"max_bytes": text.strip()}


def spelled_out(table: Any) -> Any:
    """A table as a file says it, with what may be said in short said in full.

    Raises
    ------
    ConfigError
        Both ``capacity`` and ``max_bytes`` say bytes.
    """
    if isinstance(table, int) and not isinstance(table, bool):
        return {"capacity": table}
    if isinstance(table, str):
        return sized(table)
    if not isinstance(table, dict):
        return table
    full = dict(table)
    if isinstance(full.get("capacity"), str):
        size = sized(full.pop("capacity"))
        if given := size.keys() & full.keys():
            raise ConfigError(f"capacity: {table['capacity']!r} beside {given.pop()}={full['max_bytes']!r}: give bytes once")
        full |= size
    for name in ("sampler", "remover", "limiter"):
        if isinstance(full.get(name), str):
            full[name] = {"kind": full[name]}
    if isinstance(full.get("schema"), dict):
        full["schema"] = {name: {"dtype": one} if isinstance(one, str) else one for name, one in full["schema"].items()}
    return full

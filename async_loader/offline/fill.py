"""Episodes of any origin into a table: `from_episodes`, and what all imports share."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np

from async_loader.errors import ConfigError, Timeout, WouldDeadlock
from async_loader.offline.bad_data import Place
from async_loader.offline.episode import Episode, EpisodeChecker, MissingEnds
from async_loader.offline.filling import TableFiller
from async_loader.replay.buffer import ReplayBuffer
from async_loader.schema import Schema
from async_loader.table import Table, is_table


def from_episodes(episodes: Iterable[Mapping[str, Any]], **options: Any) -> Any:
    """Fill a table from episodes, in one pass over them.

    Parameters
    ----------
    episodes : iterable of dict
        Of each episode arrays ``[steps, ...]``, nested where spaces are: ``obs``, ``action``,
        ``reward``, ``terminated``, ``truncated``, and any others; the plural names of Minari and
        D4RL are understood too. The observation after the last step comes as one more value of
        ``obs`` (``[steps + 1, ...]``), as ``next_obs`` ``[steps, ...]``, or as ``final_obs``, one
        observation. ``terminated`` and ``truncated`` are ``[steps]``, or one bool for the last
        step.
    **options
        - ``into``: the table to fill, a ReplayBuffer or a table of a feeder. All episodes are read
          and checked before the first is written, so that the whole data is in memory for a moment.
          By default a new one is made;
        - ``capacity``: of a new table, as in `ReplayBuffer`; by default it holds all of the data.
          With it, an iterable is not read ahead;
        - ``schema``: as in `ReplayBuffer`; by default that of the first episode: its fields with
          their dtypes, ``terminated`` and ``truncated``; observations are followed by ``next_obs``
          (``Field(next="next_obs")``). Fields that a schema does not name are left out;
        - ``missing_ends``, "refuse" or "truncate": what becomes of an episode whose last step is
          neither terminated nor truncated;
        - ``float_dtype``: of the floating fields of a schema that is taken from the data, as
          "float32";
        - ``progress``: whether to show a progress bar;
        - ``timeout_s``: of each write into a table of a feeder, or with a limiter;
        - more arguments of a new `ReplayBuffer`: ``sampler=``, ``view=``, ``seed=``... A
          ``limiter`` applies once the table is filled.

    Returns
    -------
    ReplayBuffer
        Or the table that was given.

    Raises
    ------
    BadData
        Names the episode, the field and the remedy: for missing and unequal arrays, rewards that
        are not finite, dtypes that a table cannot hold, ends that are missing or come early, no
        episodes at all. Nothing of the import is in a table then: a new one is closed.
    ConfigError
        For arguments that exclude each other.
    OutOfMemory
        If a new table would not fit.

    Examples
    --------
    >>> episode = {
    ...     "obs": np.arange(4.0), "action": np.zeros(3, int), "reward": np.ones(3),
    ...     "terminated": True,
    ... }
    >>> table = from_episodes([episode])
    >>> len(table), table.get([2])["next_obs"]
    (3, array([3.]))
    """
    if isinstance(episodes, Mapping):
        raise ConfigError("from_episodes() takes an iterable of episodes: [episode] for one dict")
    wanted = Import.of(options)
    count = len(episodes) if isinstance(episodes, Sized) else None
    given = ((Place(episode=i), one) for i, one in enumerate(episodes))
    return wanted.run(given, Place("the iterable"), episodes=count)


@dataclass(frozen=True, slots=True)
class Import:
    """The arguments that all imports share; see `from_episodes`."""

    into: Any
    capacity: int | str | None
    schema: Schema | None
    missing_ends: MissingEnds
    float_dtype: np.dtype[Any] | None
    progress: bool
    timeout_s: float | None
    options: dict[str, Any]

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Import:
        """Check the keywords of an import.

        Raises
        ------
        ConfigError, SchemaError
        """
        rest = dict(options)
        into, capacity = rest.pop("into", None), rest.pop("capacity", None)
        schema, floats = rest.pop("schema", None), rest.pop("float_dtype", None)
        missing_ends = rest.pop("missing_ends", "refuse")
        progress, timeout_s = rest.pop("progress", False), rest.pop("timeout_s", None)
        if missing_ends not in get_args(MissingEnds):
            raise ConfigError(f"missing_ends={missing_ends!r}: it is 'refuse' or 'truncate'")
        if into is not None:
            if not is_table(into):
                raise ConfigError(f"into={into!r}: it is a table, as ReplayBuffer(...)")
            given = {"capacity": capacity, "schema": schema, **rest}
            if extra := [name for name, value in given.items() if value is not None]:
                raise ConfigError(f"{extra[0]}= is for a new table, and into= one that is there")
            schema = into.schema
        made = None if schema is None else Schema.of(schema)
        if made is not None:
            _check_followed(made)
        dtype = None if floats is None else np.dtype(floats)
        if dtype is not None and dtype.kind != "f":
            raise ConfigError(f"float_dtype={floats!r}: a floating dtype, as 'float32'")
        return cls(into, capacity, made, missing_ends, dtype, progress, timeout_s, rest)

    def run(
        self,
        given: Iterable[tuple[Place, Any]],
        source: Place,
        *,
        steps: int | None = None,
        episodes: int | None = None,
        drop_last: bool = False,
    ) -> Any:
        """Fill the table.

        Parameters
        ----------
        given : iterable of (Place, dict)
        source : Place
            All of the data.
        steps, episodes : int, optional
            How many there are, where that is known.
        drop_last : bool
            See `EpisodeChecker`.
        """
        checker = EpisodeChecker(self.schema, self.missing_ends, drop_last, self.float_dtype)
        with _bar(self.progress, episodes) as advance:
            checked = _checked(checker, given, advance)
            if self.into is not None:
                everything = list(checked)
                if not everything:
                    raise _empty(source)
                _fill(self.into, everything, source, checker.schema, self.timeout_s)
                return self.into
            capacity: Any = self.capacity
            if capacity is None and (steps is None or episodes is None):
                everything = list(checked)
                steps, episodes, checked = (
                    sum(map(len, everything)),
                    len(everything),
                    iter(everything),
                )
            first = next(checked, None)
            if first is None:
                raise _empty(source)
            if capacity is None:
                assert steps is not None
                assert episodes is not None
                capacity = steps + episodes  # an observation after an episode takes a row
            return self._new(checker.schema, capacity, first, checked, source)

    def _new(
        self,
        schema: Schema | None,
        capacity: int | str,
        first: Episode,
        others: Iterator[Episode],
        source: Place,
    ) -> ReplayBuffer:
        options = dict(self.options)
        limiter = options.pop("limiter", None)
        table = ReplayBuffer(capacity, schema, **options)
        try:
            _fill(table, _before(first, others), source, None, self.timeout_s)
            if limiter is not None:
                table.limiter = limiter
        except BaseException:
            table.close()
            raise
        return table


def _fill(
    table: Table,
    episodes: Iterable[Episode],
    source: Place,
    schema: Schema | None,
    timeout_s: float | None,
) -> None:
    filler = TableFiller(table, schema, timeout_s)
    try:
        for episode in episodes:
            filler.put(episode)
        filler.finish()
        if not filler.episodes:
            raise _empty(source)
    except BaseException as error:
        filler.undo(error)
        if isinstance(error, Timeout | WouldDeadlock) and table.limiter is not None:
            raise type(error)(
                f"{error}. The table has a limiter, which waits for its learners: set "
                "table.limiter = None while it is filled, or leave it out of the settings of a "
                "feeder's table"
            ) from error
        raise


def _before(first: Episode, others: Iterator[Episode]) -> Iterator[Episode]:
    yield first
    yield from others


def _checked(
    checker: EpisodeChecker, given: Iterable[tuple[Place, Any]], advance: Callable[[], None]
) -> Iterator[Episode]:
    for place, one in given:
        episode = checker.episode(one, place)
        advance()
        if episode is not None:
            yield episode


def check_names(argument: str, given: object) -> None:
    """Raise ConfigError for a text, whose letters would be taken as names."""
    if isinstance(given, str):
        raise ConfigError(f"{argument}={given!r}: it is a list of names, as {argument}=[{given!r}]")


def _empty(source: Place) -> Exception:
    return source.error(None, "there are no episodes in it: nothing was imported")


def _check_followed(schema: Schema) -> None:
    for field in schema.fields:
        if field.next is not None and field.name.split(".")[0] != "obs":
            raise ConfigError(
                f"field {field.name!r} has next={field.next!r}, and what comes after an episode's "
                "last step is known of obs only: leave next= out, and give the field of the "
                "following step as a field of its own"
            )


@contextlib.contextmanager
def _bar(wanted: bool, episodes: int | None) -> Iterator[Callable[[], None]]:
    """Show a progress bar on stderr; yields what is called for each episode."""
    if not wanted:
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("episodes"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=episodes)
        yield lambda: bar.advance(task)

"""Episodes of any origin into a table: `from_episodes`, and what all imports share."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Mapping, Sized
from typing import Any

import numpy as np

from async_loader.errors import AsyncLoaderError, ConfigError, SchemaError
from async_loader.offline.bad_data import Place
from async_loader.offline.episode import Episode, episode_of, schema_of
from async_loader.replay.buffer import ReplayBuffer
from async_loader.schema import Schema
from async_loader.table import Table, is_table
from async_loader.validation import one_of


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
        step. What lies in ``infos`` may have one value more too: the first is that of the reset.
    **options
        - ``into``: the table to fill, a ReplayBuffer or a table of a feeder; by default a new
          one is made;
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
        Names the episode, the field and the remedy: for missing and unequal arrays, dtypes that a
        table cannot hold, ends that are missing or come early, no episodes at all. A new table
        is closed then; ``into`` keeps the episodes before.
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
    count = len(episodes) if isinstance(episodes, Sized) else None
    given = ((Place(episode=i), one) for i, one in enumerate(episodes))
    return import_episodes(given, Place("the iterable"), episodes=count, **options)


def import_episodes(
    given: Iterable[tuple[Place, Any]],
    source: Place,
    *,
    steps: int | None = None,
    episodes: int | None = None,
    drop_last: bool = False,
    into: Any = None,
    capacity: int | str | None = None,
    schema: Any = None,
    missing_ends: str = "refuse",
    float_dtype: Any = None,
    progress: bool = False,
    timeout_s: float | None = None,
    **options: Any,
) -> Any:
    """Fill a table from dicts of arrays. What is not named here is as in `from_episodes`.

    Parameters
    ----------
    given : iterable of (Place, dict)
    source : Place
        All of the data.
    steps, episodes : int, optional
        How many there are, where that is known.
    drop_last : bool
        See `episode_of`.

    Raises
    ------
    TypeError
        Names a keyword that a new table does not have.
    ConfigError, SchemaError, BadData
    """
    one_of("missing_ends", missing_ends, ("refuse", "truncate"))
    if into is not None:
        if not is_table(into):
            raise ConfigError(f"into={into!r}: it is a table, as ReplayBuffer(...)")
        of_new = {"capacity": capacity, "schema": schema, **options}
        if extra := [name for name, value in of_new.items() if value is not None]:
            raise ConfigError(f"{extra[0]}= is for a new table, and into= one that is there")
        schema = into.schema
    wanted = None if schema is None else Schema.of(schema)
    for field in () if wanted is None else wanted.fields:
        if field.next is not None and field.name.split(".")[0] != "obs":
            raise ConfigError(
                f"field {field.name!r} has next={field.next!r}, and what comes after an "
                "episode's last step is known of obs only: leave next= out, and give the field "
                "of the following step as a field of its own"
            )
    floats = None if float_dtype is None else np.dtype(float_dtype)
    if floats is not None and floats.kind != "f":
        raise ConfigError(f"float_dtype={float_dtype!r}: a floating dtype, as 'float32'")
    if progress:
        from rich.console import Console
        from rich.progress import track

        given = track(given, "episodes", episodes, console=Console(stderr=True))
    read = ((at, episode_of(one, at, wanted, missing_ends, drop_last)) for at, one in given)
    found = ((at, one) for at, one in read if one is not None)
    if into is None and capacity is None:
        if steps is None or episodes is None:
            everything = list(found)
            steps, episodes = sum(len(one.terminated) for _, one in everything), len(everything)
            found = (one for one in everything)
        capacity = steps + episodes  # an observation after an episode takes a row
    first = next(found, None)
    if first is None:
        raise source.error(None, "there are no episodes in it: nothing was imported")
    learned = wanted
    if learned is None:
        try:
            learned = schema_of(first[1], floats)
        except SchemaError as error:
            raise first[0].misfit(error) from None
    every = itertools.chain([first], found)
    if into is not None:
        _fill(into, every, learned, timeout_s)
        return into
    limiter = options.pop("limiter", None)
    assert capacity is not None
    table = ReplayBuffer(capacity, learned, **options)
    try:
        _fill(table, every, learned, timeout_s)
        table.limiter = limiter
    except BaseException:
        table.close()
        raise
    return table


def _fill(
    table: Table,
    episodes: Iterable[tuple[Place, Episode]],
    schema: Schema,
    timeout_s: float | None,
) -> None:
    """Write episodes into a table; the episodes before one that does not fit stay there."""
    writer = table.writer(schema=schema if table.schema is None else None)
    try:
        for place, episode in episodes:
            try:
                writer.extend(
                    episode.steps,
                    terminated=episode.terminated,
                    truncated=episode.truncated,
                    final_obs=episode.final_obs,
                    timeout_s=timeout_s,
                )
            except SchemaError as error:
                raise place.misfit(error) from None
    except BaseException:
        with contextlib.suppress(AsyncLoaderError):  # the first error says why
            writer.close(timeout_s)
        raise
    writer.close(timeout_s)


def nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return values under names with slashes as nested dicts. Raises ValueError for a name within
    an array's.
    """
    made: dict[str, Any] = {}
    for name, value in flat.items():
        *groups, leaf = name.split("/")
        inner = made
        for group in groups:
            inner = inner.setdefault(group, {})
            if not isinstance(inner, dict):
                raise ValueError(f"{name} lies within {group}, which is an array")
        if leaf in inner:
            raise ValueError(f"{name} is an array, and others lie within it")
        inner[leaf] = value
    return made

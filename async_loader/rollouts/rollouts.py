"""`Rollouts`: a table of groups in this process."""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self, get_args

from async_loader.errors import CannotSend, ConfigError
from async_loader.lifecycle import seconds
from async_loader.name_hints import explain_wrong_names
from async_loader.public_names import set_public_names
from async_loader.replay.checkpoint.writing import SaveReport
from async_loader.rollouts.calls import rollout_calls
from async_loader.rollouts.methods import RolloutMethods
from async_loader.rollouts.port import LocalPort
from async_loader.rollouts.saving import read, restore, state_of, write
from async_loader.rollouts.schema import GroupSchema
from async_loader.rollouts.slots import GroupSettings, Stale
from async_loader.validation import one_of, path_of, whole

__all__ = ["Rollouts"]
set_public_names(globals())


def settings_of(schema: Any, **given: Any) -> GroupSettings:
    """Return the settings of a table. Raises ConfigError, SchemaError."""
    deadline_s = seconds("deadline_s", given["deadline_s"])
    one_of("stale", given["stale"], get_args(Stale))
    least = {"batch": 1, "max_lag": 0, "size": 1, "tries": 1, "replay": 0}
    if not isinstance(given["policy"], str):
        raise ConfigError(
            f"policy={given['policy']!r}: it is the name that weights are published as"
        )
    return GroupSettings(
        schema=GroupSchema.of(schema),
        deadline_s=deadline_s,
        stale=given["stale"],
        policy=given["policy"],
        **{name: whole(name, given[name], one) for name, one in least.items()},
    )


class Rollouts(RolloutMethods):
    """A table of groups of rollouts, as reinforcement learning of language models uses them.

    A group is what one prompt leads to: members of any number and length. There are
    ``(max_lag + 1) * batch`` slots. A reservation takes one; each way out gives it back: trained,
    filtered, given up, too late. So generators wait while learners are behind. A batch waits for
    groups that would become older than ``max_lag`` versions: each is used in time.

    Threads: any. In other processes, say ``connect(address).table(name)`` of a feeder: the same
    methods.

    Parameters
    ----------
    schema : dict
        `Ragged`, `Field` or a dtype by name. ``Field(..., scope="group")`` has one value a group. A
        ragged field named ``version`` has the version that made each token: the oldest counts.
    batch : int
        Groups of one step of the learner, on all ranks together.
    max_lag : int
        Versions that a group may be behind when it is delivered; 0: on policy.
    size : int
        Members of a group, unless `groups` says another number.
    deadline_s : float
        From the reservation until all fields are there. Then the prompt is given back.
    stale : "wait" | "drop" | "mask"
        A batch waits for groups that would become too old; or these are ended as "stale"; or they
        are delivered, and ``mask`` says which values are not too old.
    tries : int
        Groups that are begun for one prompt, until it is given up.
    replay : int
        Trained groups that are kept for sources with another ``max_times_sampled`` than 1.
    policy : str
        In a feeder: the name of the weights whose versions count.

    Raises
    ------
    SchemaError, ConfigError

    Examples
    --------
    >>> table = Rollouts({"tokens": Ragged("int32"), "reward": "float32"}, batch=1, size=2)
    >>> for group in table.groups(["1 + 1 ="]):
    ...     while group.missing:
    ...         _ = group.append(tokens=[1, 2, 3], reward=1.0)
    >>> table.stats().states["ready"]
    1
    """

    @explain_wrong_names
    def __init__(
        self,
        schema: Mapping[str, Any],
        *,
        batch: int,
        max_lag: int = 1,
        size: int = 8,
        deadline_s: float = 600.0,
        stale: Stale = "wait",
        tries: int = 2,
        replay: int = 0,
        policy: str = "policy",
    ) -> None:
        self.settings = settings_of(
            schema, batch=batch, max_lag=max_lag, size=size, deadline_s=deadline_s, stale=stale,
            tries=tries, replay=replay, policy=policy,
        )  # fmt: skip
        self._port: LocalPort = LocalPort(rollout_calls(self.settings, time.monotonic))
        self._sources = weakref.WeakSet()
        self._saves = 0

    @property
    def group_schema(self) -> GroupSchema:
        """The fields."""
        return self.settings.schema

    def __repr__(self) -> str:
        one = self.settings
        return (
            f"<Rollouts batch={one.batch} max_lag={one.max_lag} fields={list(one.schema.fields)}>"
        )

    def __reduce__(self) -> Any:
        raise CannotSend("a table of rollouts stays in its process: use connect('embedded')")

    # -- one cut -----------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return groups, prompts under way, cursors, version and step, as plain values and arrays.

        What learners of this process were given counts as trained: save the model with it.
        """
        self.settle()
        state: dict[str, Any] = self._port.call(state_of)
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from `state_dict`: nothing is skipped, nothing is trained twice.

        Raises SchemaError for another schema.
        """
        self._port.call(lambda calls: restore(calls, state))

    def save(self, path: str | os.PathLike[str]) -> SaveReport:
        """Write `state_dict` to a folder, in place of an earlier save, or not at all.

        Raises OSError, ConfigError.
        """
        folder, begun = Path(path_of("path", path)), time.perf_counter()
        state = self.state_dict()
        paused = time.perf_counter() - begun
        nbytes = write(folder, state)
        self._saves += 1
        return SaveReport(
            number=self._saves, nbytes=nbytes, rows=len(state["meta"]["groups"]),
            duration_s=time.perf_counter() - begun, pause_s=paused,
        )  # fmt: skip

    def load(self, path: str | os.PathLike[str]) -> None:
        """Go on from a `save`. Raises CorruptCheckpoint, SchemaError, OSError."""
        self.load_state_dict(read(Path(path_of("path", path))))

    # -- the end -----------------------------------------------------------------------------------

    def close(self) -> None:
        """End all calls that wait. May be called again."""
        self._port.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

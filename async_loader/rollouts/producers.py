"""The methods of a table of rollouts that generators and graders call."""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from async_loader import tensors
from async_loader.errors import ConfigError, SchemaError
from async_loader.name_hints import explain_wrong_names
from async_loader.rollouts.groups import Member, OpenGroup, Prompts, Reservations, ticket
from async_loader.rollouts.port import Port
from async_loader.rollouts.prompts import NEXT
from async_loader.rollouts.schema import Array, GroupSchema, cast_array
from async_loader.validation import whole


class ProducerMethods:
    """A table of rollouts, for what fills it."""

    _port: Port

    @property
    @abstractmethod
    def group_schema(self) -> GroupSchema:
        """The fields."""

    def _ask(
        self, name: str, arrays: Mapping[str, Array] | None = None, /, **arguments: Any
    ) -> tuple[dict[str, Any], dict[str, Array]]:
        port = self._port
        return port.answer(port.ask(name, arguments, arrays or {}), port.timeout_s)

    def _about(self) -> Mapping[str, Any]:
        """Return its settings, and where it stands."""
        return self._ask("about")[0]

    # -- generators --------------------------------------------------------------------------------

    @explain_wrong_names
    def groups(
        self,
        prompts: Iterable[Any],
        *,
        name: str = "prompts",
        epochs: int | None = 1,
        size: int | None = None,
        timeout_s: float | None = None,
    ) -> Iterator[OpenGroup]:
        """Yield a group for each prompt, when there is a slot for it.

        The end of the loop's body commits it. If the body raises, or is left by ``break``, the
        prompt is given back, and tried again. The same happens if this process dies, or does not
        commit within ``deadline_s``. The loop ends when there are no more prompts, and no group of
        these is being made. What is given back later goes to the next loop, or ends as "no
        generator" after ``deadline_s``.

        Parameters
        ----------
        prompts : sequence, or iterable of plain values
            A sequence is numbered by the table: generators that name it alike share it, and one
            that starts again goes on where they were. An iterable belongs to one generator; its
            values travel to the table (numbers, text, lists, dicts), and one that starts again
            passes over those that were drawn. It is iterated anew when the table is restored from
            a save before.
        name : str
            Of the prompts, under which the table counts them.
        epochs : int | None
            How often a sequence is passed; ``None``: without end.
        size : int, optional
            Members of each group, rather than those of the table.
        timeout_s : float, optional
            For each slot; ``None``: as long as it takes.

        Raises
        ------
        Timeout
            Says who holds the slots.
        ConfigError
            The table was restored from a save before, and ``prompts`` is an iterator: begin again.
        """
        if isinstance(prompts, (str, bytes)) or not isinstance(prompts, Iterable):
            raise ConfigError(f"prompts is {prompts!r}: give a sequence, as [{prompts!r}]")
        port, about = self._port, self._about()
        supply = Prompts(prompts, epochs, int(about["cursors"].get(name, 0)))
        task = {"name": name} if size is None else {"name": name, "size": whole("size", size, 1)}
        reservations = Reservations(port, supply, task, timeout_s)
        committing: deque[tuple[OpenGroup, list[Any]]] = deque()
        asked: list[Any] = []
        group: OpenGroup | None = None
        try:
            while True:
                if group is not None:
                    asked = [] if group.over else group.ask_commit(asked, reservations.hold_s)
                    committing.append((group, asked))
                    group = None
                reservations.ask()
                more = reservations.answer()
                while len(committing) > (reservations.most if more else 0):
                    last, last_asked = committing.popleft()
                    last.committed(last_asked, port.timeout_s)
                if not more:
                    return
                granted = reservations.take()
                group = OpenGroup(port, self.group_schema, granted, supply.granted(granted))
                yield group
        finally:
            if group is not None and not group.over:
                port.drop("abort", {"group": group.id, "reason": "the loop was left"})
                group.leave()
            reservations.give_back()

    @explain_wrong_names
    def reserve(
        self,
        prompt: Any = None,
        *,
        name: str = "reserved",
        size: int | None = None,
        timeout_s: float | None = None,
    ) -> OpenGroup:
        """Reserve one group: `groups` for a program that has its own loop over prompts.

        Its prompt, a plain value, comes again if it is given back: the group that is returned may
        be for another one, see `OpenGroup.prompt`.

        Parameters
        ----------
        prompt : plain value
        name, size, timeout_s
            As for `groups`.
        """
        port = self._port
        arguments = {"name": name, "ticket": ticket(), "number": NEXT, "value": prompt}
        if size is not None:
            arguments["size"] = whole("size", size, 1)
        granted, _ = port.answer(port.ask("reserve", arguments, wait_s=timeout_s), timeout_s)
        return OpenGroup(port, self.group_schema, granted, granted["value"])

    def extend(
        self,
        batch: Mapping[str, Any],
        *,
        prompts: Sequence[Any] | None = None,
        name: str = "reserved",
        timeout_s: float | None = None,
    ) -> list[int]:
        """Add whole groups that are there already, in one call; return their ids.

        Parameters
        ----------
        batch : dict of arrays
            As `source` gives them: ragged fields one behind the other with ``offsets``, other
            fields ``[members, ...]``, fields of groups ``[groups, ...]``, and ``group``
            ``[members]``, from 0 on in order. Fields may be left out, and come later.
        prompts : sequence of plain values, optional
            For the groups.
        name, timeout_s
            As for `reserve`: it waits for slots for all.
        """
        schema = self.group_schema
        group = np.asarray(tensors.to_array(batch["group"]), np.int64)
        sizes = np.bincount(group) if len(group) else np.zeros(0, np.int64)
        if (np.diff(group) < 0).any() or not sizes.all():
            raise SchemaError("`group` counts from 0 on, each group's members together")
        arrays: dict[str, Array] = {
            "lengths": np.diff(np.asarray(tensors.to_array(batch["offsets"]))).astype(np.int64),
            "sizes": sizes,
        }
        for one, value in batch.items():
            if one in schema.fields:
                if schema.is_ragged(one) and one in schema.group:
                    raise SchemaError(f"field {one!r} is ragged and of the group: say reserve()")
                given, keeps = np.asarray(tensors.to_array(value)), self._port.keeps
                arrays[one] = cast_array(one, given, schema.fields[one].dtype, copy=keeps)
        listed = [None] * len(sizes) if prompts is None else list(prompts)
        if len(listed) != len(sizes):
            raise ConfigError(f"{len(listed)} prompts for {len(sizes)} groups: one for each")
        return self._extend(arrays, listed, name, timeout_s)

    def _extend(
        self, arrays: dict[str, Array], prompts: list[Any], name: str, timeout_s: float | None
    ) -> list[int]:
        """As `extend`, in as many calls as it takes."""
        nbytes, schema = sum(one.nbytes for one in arrays.values()), self.group_schema
        if nbytes > self._port.most_bytes and len(prompts) > 1:
            half = len(prompts) // 2
            members = int(arrays["sizes"][:half].sum())
            tokens = int(arrays["lengths"][:members].sum())
            cuts = dict.fromkeys(schema.ragged, tokens)
            cuts |= dict.fromkeys((*schema.small, "lengths"), members)
            first = {one: values[: cuts.get(one, half)] for one, values in arrays.items()}
            last = {one: values[cuts.get(one, half) :] for one, values in arrays.items()}
            return [
                *self._extend(first, prompts[:half], name, timeout_s),
                *self._extend(last, prompts[half:], name, timeout_s),
            ]
        arguments = {"name": name, "ticket": ticket(), "prompts": prompts}
        pending = self._port.ask("extend", arguments, arrays, wait_s=timeout_s)
        return list(self._port.answer(pending, timeout_s)[0]["groups"])

    def finish(self, name: str = "reserved") -> None:
        """There are no more prompts of this name: learners come to an end, when all have."""
        self._ask("finish", name=name)

    # -- late fields -------------------------------------------------------------------------------

    @explain_wrong_names
    def members(
        self,
        needs: Sequence[str],
        give: Sequence[str] = (),
        *,
        name: str = "",
        ahead: int = 1,
        timeout_s: float | None = None,
    ) -> Iterator[Member]:
        """Yield each member that has some fields and lacks others, once, as soon as it is there.

        Loops of the same ``needs``, ``give`` and ``name`` share them, in any processes. What a loop
        has and does not finish goes to another one.

        Parameters
        ----------
        needs, give : sequence of str
            Fields that all members of its group have; fields that it gets by `Member.update`.
            Without ``give`` each member is yielded.
        ahead : int
            Members that are taken at a time.
        timeout_s : float, optional
            For each; ``None``: as long as it takes. The loop ends when no member can come any more.
        """
        port, wanted = self._port, (needs, give)
        needs, give = ([one] if isinstance(one, str) else list(one) for one in wanted)
        if both := set(needs) & set(give):
            raise ConfigError(f"{min(both)!r} is in needs and in give: name it once")
        task = {
            "needs": needs, "give": give, "name": name, "most": whole("ahead", ahead, 1),
            "loop": ticket(),
        }  # fmt: skip
        turns = itertools.count()
        done: list[int] = []
        open_: list[int] = []
        try:
            while True:
                pending = port.ask(
                    "claim", {**task, "done": done, "turn": next(turns)}, wait_s=timeout_s
                )
                done = []
                head, arrays = port.answer(pending, timeout_s)
                if "end" in head:
                    return
                open_ = list(head["members"])
                fields: list[dict[str, Array]] = [{} for _ in open_]
                for key, value in arrays.items():
                    place, _, field = key.partition(".")
                    fields[int(place)][field] = value
                for i, one in enumerate(list(open_)):
                    yield Member(port, self.group_schema, one, fields[i])
                    open_.remove(one)
                    done.append(one)
        finally:
            if open_ or done:
                port.drop("unclaim", {"members": open_, "done": done})

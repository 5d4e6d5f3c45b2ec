"""What the processes of a round wrote down, and whether it can be. Starts nothing.

As in Jepsen: `sent` is what an actor began to append, `acknowledged` what a flush said is in the
table, `lost` what the client said that a server had acknowledged and lost. Rows of an actor are
numbered from 0, and go the same way in order, so each of these is a number of rows, counted from
the first.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

MEMBERS = 2
"""Streams of an actor."""
SLACK_S = 30.0
"""By which a call may exceed its deadline: far above what two busy cores, or a stop of the
caller, cost; far below a hang.
"""


@dataclass
class Actor:
    """One actor's rows.

    Attributes
    ----------
    number, sent : int
    acknowledged : int
        Rows of which it knew for sure.
    safe : list of (first, last)
        Rows that were appended when the client had met the last server.
    done : bool
        It came to its end; then everything it sent is in the table, but for what was lost and
        dropped.
    """

    number: int
    drops: bool = False
    sent: int = 0
    acknowledged: int = 0
    bursts: list[tuple[int, int, str]] = field(default_factory=list)
    done: bool = False
    acked = lost = dropped = 0

    def needed(self, incarnation: str) -> list[int]:
        """Rows that have to be there."""
        if self.drops:
            return []
        if self.done:
            return list(range(self.lost, self.sent))
        safe = (range(first, last) for first, last, met in self.bursts if met == incarnation)
        return [value for values in safe for value in values if value < self.acknowledged]

    def due(self, incarnation: str) -> list[int]:
        """Of those, whom a learner has to get: the last steps of an actor that was killed are
        followed by nothing.
        """
        most = self.sent if self.done else self.acknowledged - MEMBERS
        return [value for value in self.needed(incarnation) if value < most]


@dataclass
class Use:
    """A row in a learner's batch."""

    at: float
    again: bool
    """Whether the row says that it may have come before."""
    learner: str


class History:
    """All logs of a round.

    Parameters
    ----------
    folder : Path
    drops : set of int
        Actors that drop their oldest rows.
    """

    def __init__(self, folder: Path, drops: frozenset[int]):
        self.actors: dict[int, Actor] = {}
        self.uses: dict[tuple[int, int], list[Use]] = defaultdict(list)
        self.batches = self.calls = 0
        self.slowest_s = 0.0
        self.sessions: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.starved: list[str] = []
        self.transports: set[str] = set()
        for path in sorted(folder.glob("*.log")):
            for line in path.read_text().splitlines():
                at, what, *rest = json.loads(line)
                if what == "took":
                    self._took(path.stem, *rest)
                elif path.stem.startswith("actor"):
                    number = int(path.stem.removeprefix("actor"))
                    self._actor(
                        self.actors.setdefault(number, Actor(number, number in drops)), what, rest
                    )
                else:
                    self._learner(path.stem, at, what, rest)

    def _took(self, who: str, name: str, limit_s: float, spent_s: float) -> None:
        self.calls += 1
        self.slowest_s = max(self.slowest_s, spent_s - limit_s)
        if spent_s > limit_s + SLACK_S:
            self.wrong.append(f"{who}: {name} took {spent_s:.1f} s, its deadline was {limit_s:g} s")

    def _actor(self, actor: Actor, what: str, rest: list) -> None:
        if what == "sent":
            actor.bursts.append((actor.sent, rest[0], rest[1]))
            actor.sent = rest[0]
        elif what == "acked":
            actor.acknowledged = rest[0]
        elif what == "done":
            appended, actor.acked, actor.lost, actor.dropped, _, sessions, late = rest
            self.sessions[f"actor{actor.number}"] = sessions
            actor.done = not late
            if late:
                self.wrong.append(
                    f"actor {actor.number} could not come to its end when all was well again: "
                    f"{late}"
                )
            elif appended != actor.acked + actor.dropped:
                text = f"appended {appended}, acknowledged {actor.acked}, dropped {actor.dropped}"
                if actor.lost == 0:
                    self.wrong.append(
                        f"actor {actor.number}: the client's sums do not add up: {text}"
                    )

    def _learner(self, who: str, at: float, what: str, rest: list) -> None:
        if what == "used":
            again, pairs, torn = rest
            self.batches += 1
            if torn:
                self.wrong.append(f"{who}: torn rows {[pairs[i] for i in torn][:5]}")
            for pair, one in zip(pairs, again, strict=True):
                self.uses[tuple(pair)].append(Use(at, one, who))
        elif what == "prioritized":
            if rest[0] != rest[1] + rest[2]:
                self.wrong.append(
                    f"{who}: {rest[0]} priorities were sent, {rest[1]} applied and {rest[2]} stale"
                )
        elif what == "done":
            self.sessions[who] = rest[2]
            if rest[3] > 0:
                self.starved.append(who)
            if rest[4] is not None:
                self.transports.add(rest[4])

    # -- verdicts ----------------------------------------------------------------------------------

    def needed(self, incarnation: str) -> set[tuple[int, int]]:
        """What was promised to be there, by (actor, value)."""
        return {
            (one.number, value) for one in self.actors.values() for value in one.needed(incarnation)
        }

    def due(self, incarnation: str) -> set[tuple[int, int]]:
        """What a learner of a queue has to get."""
        return {
            (one.number, value) for one in self.actors.values() for value in one.due(incarnation)
        }

    def never_sent(self) -> list[str]:
        """Rows that a learner saw and no actor sent."""
        alien = [
            pair
            for pair in self.uses
            if pair[0] not in self.actors or not 0 <= pair[1] < self.actors[pair[0]].sent
        ]
        return [f"rows that no actor sent: {alien[:5]}"] if alien else []

    def check_table(self, dump: dict[str, np.ndarray], incarnation: str) -> list[str]:
        """A table from which nothing is taken: what was promised, once each, in order, whole."""
        rows: dict[int, list[int]] = defaultdict(list)
        if len(dump["ids"]):
            for actor, value in zip(dump["actor"].tolist(), dump["value"].tolist(), strict=True):
                rows[actor].append(value)
        wrong = [*self.wrong, *self.never_sent()]
        if len(dump.get("torn", ())):
            wrong.append(f"torn rows in the table: {dump['torn'][:5].tolist()}")
        if len(dump.get("misplaced", ())):
            wrong.append(
                f"{len(dump['misplaced'])} rows have the priority of another: "
                f"{dump['misplaced'][:5].tolist()}"
            )
        if self.starved and rows:
            wrong.append(f"no more batches came to {self.starved} when all was well again")
        for number in rows.keys() | self.actors.keys():
            wrong += self._check_rows(number, rows[number], incarnation)
        return wrong

    def _check_rows(self, number: int, found: list[int], incarnation: str) -> list[str]:
        actor = self.actors.get(number, Actor(number))
        twice = [value for value, count in Counter(found).items() if count > 1]
        missing = sorted(set(actor.needed(incarnation)) - set(found))
        alien = sorted(value for value in set(found) if not 0 <= value < actor.sent)
        wrong = []
        if twice:
            wrong.append(f"actor {number}: {len(twice)} rows twice: {_some(twice)}")
        if missing:
            wrong.append(
                f"actor {number}: {len(missing)} acknowledged rows missing: {_some(missing)}"
            )
        if alien:
            wrong.append(f"actor {number}: rows that were not sent: {_some(alien)}")
        if found != sorted(found):
            wrong.append(f"actor {number}: rows out of order")
        if found and not actor.drops and not twice and found[-1] - found[0] + 1 != len(found):
            wrong.append(
                f"actor {number}: a hole between {found[0]} and {found[-1]}: {len(found)} rows"
            )
        short = actor.sent - actor.lost - actor.dropped - len(found)
        # Before what was dropped a stream's last step goes too: nothing that is there follows it.
        # Each drop is of a row or more.
        if actor.done and not 0 <= short <= MEMBERS * actor.dropped:
            sums = (
                f"{actor.sent} sent, {actor.lost} lost, {actor.dropped} dropped, {len(found)} found"
            )
            wrong.append(f"actor {number}: sums do not add up: {sums}")
        if actor.done and not actor.drops and found and found[0] != actor.lost:
            wrong.append(
                f"actor {number}: it was told that the first {actor.lost} rows are lost, the table "
                f"begins at {found[0]}"
            )
        return wrong

    def check_uses(
        self, incarnation: str, left: set[tuple[int, int]], undisturbed: bool
    ) -> list[str]:
        """A queue: each item is used, and each time but one it says that it may have been used
        before, whatever befell whom.

        Parameters
        ----------
        left : set of (actor, value)
            What is in the table at the end, and what the server holds for learners that may still
            come: the last learner of a round leaves when it has all that is `due`, and what is
            drawn for it then goes back to the server.
        undisturbed : bool
            Whether nothing was killed, cut or lost: then each item is used once, and none says
            otherwise.
        """
        wrong = [*self.wrong, *self.never_sent()]
        unused = sorted(self.needed(incarnation) - self.uses.keys() - left)
        if unused:
            wrong.append(f"{len(unused)} items acknowledged and never delivered: {unused[:5]}")
        for pair, uses in self.uses.items():
            unsaid, who = (
                sum(not use.again for use in uses),
                [(one.learner, one.again) for one in sorted(uses, key=_moment)],
            )
            if unsaid > 1:
                wrong.append(f"item {pair} was delivered more than once without the flag: {who}")
            elif undisturbed and (len(uses) > 1 or not unsaid):
                wrong.append(
                    f"item {pair} was delivered again, or says so, where nothing befell anything: "
                    f"{who}"
                )
        return wrong[:20]


def _moment(use: Use) -> float:
    return use.at


def _some(values: list[int]) -> str:
    return f"{values[:5]} ... {values[-1]}" if len(values) > 5 else str(values)

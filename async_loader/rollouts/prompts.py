"""The prompts of a table: how far they were drawn, which wait to be tried (again), what became of
them.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

from async_loader.rollouts.states import Cursor, Prompt

_TICKETS = 1 << 12
NEXT = -1
"""In place of the number of a prompt."""


@dataclass(slots=True)
class Counts:
    """What became of prompts and groups since the table was made.

    Attributes
    ----------
    drawn : int
        Prompts that were reserved.
    trained : int
        Prompts whose groups were trained, once or more often.
    ended : Counter of str
        Prompts that were given up, by reason.
    given_back : Counter of str
        Groups that ended, and whose prompts are reserved again, by reason.
    late : int
        Commits and updates of groups that had ended.
    """

    drawn: int = 0
    trained: int = 0
    ended: Counter[str] = field(default_factory=Counter)
    given_back: Counter[str] = field(default_factory=Counter)
    late: int = 0
    updates: int = 0


class PromptLedger:
    """Each prompt that was drawn waits, is answered by a group, or is counted as trained or ended.

    Attributes
    ----------
    waiting : deque of Prompt
        Those that were given back, first, and those of iterators.
    cursors : dict of str to Cursor
    skipped : set of (str, int)
        Name and number of prompts that were trained, and that cursors have not come to again.
    changed : bool
        Set by each change.
    """

    def __init__(self) -> None:
        self.counts = Counts()
        self.waiting: deque[Prompt] = deque()
        self.cursors: dict[str, Cursor] = {}
        self.skipped: set[tuple[str, int]] = set()
        self.changed = False
        self._numbers: dict[tuple[Hashable, int], int] = {}  # of tickets whose calls may come again

    def note_prompt(self, name: str, of: tuple[Hashable, int], number: int, value: Any) -> int:
        """Take a prompt whose value travels, unless it is known; return its number.

        ``of``: the owner and its ticket; `NEXT` has one number for each.
        """
        cursor = self.cursors.setdefault(name, Cursor())
        if number == NEXT:
            while (name, cursor.next) in self.skipped and of not in self._numbers:
                self._draw(Prompt(name, cursor.next))
                cursor.next += 1
            number = self._numbers.setdefault(of, cursor.next)
            if len(self._numbers) > _TICKETS:
                del self._numbers[next(iter(self._numbers))]
        if number >= cursor.next:
            cursor.next, self.changed = number + 1, True
            prompt = Prompt(name, number, value)
            if self._draw(prompt):
                self.waiting.append(prompt)
        return number

    def note_limit(self, name: str, limit: int | None, over: bool) -> Cursor:
        """Take how many prompts there are, or that there are no more; return the cursor."""
        cursor = self.cursors.setdefault(name, Cursor())
        if over:
            limit = cursor.next
        if limit is not None and cursor.limit != limit:
            cursor.limit, self.changed = limit, True
        return cursor

    def next_prompt(self, name: str, sequence: bool) -> Prompt | None:
        """Take the next prompt of a name: one that waits, or of a ``sequence`` the next number."""
        for i, prompt in enumerate(self.waiting):
            if prompt.name == name:
                del self.waiting[i]
                return prompt
        cursor = self.cursors[name]
        while sequence and not cursor.over:
            prompt = Prompt(name, cursor.next)
            cursor.next += 1
            if self._draw(prompt):
                return prompt
        return None

    def _draw(self, prompt: Prompt) -> bool:
        """Count a prompt that is drawn for the first time; return whether it is to be tried."""
        self.counts.drawn += 1
        self.changed = True
        if prompt.key in self.skipped:  # it was trained before the table was restored
            self.skipped.discard(prompt.key)
            self.counts.trained += 1
            return False
        return True

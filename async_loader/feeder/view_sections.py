"""Sections of a screen, and how its lines are shared among them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import RenderableType


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Rows of one kind; if not all have room, the last line says how many are left out.

    Attributes
    ----------
    count : int
        Of the rows.
    show : callable
        Returns what shows the first rows of this number.
    more : callable
        Returns the line on those from this number on.
    header : int
        Lines above the rows.
    least : int
        Lines that it has on each screen, the one on the others included; 0 without a header only.
    hidden : bool
        There are others that have no row in any case, of which the last line tells.
    rank : int
        A section of a lower rank gets the lines beyond ``least`` first.
    """

    count: int
    show: Callable[[int], Sequence[RenderableType]]
    more: Callable[[int], RenderableType]
    header: int = 0
    least: int = 1
    hidden: bool = False
    rank: int = 0

    @property
    def wanted(self) -> int:
        """Lines for all of it, without the header's."""
        return self.count + (self.hidden and self.count > 0)

    def lines(self, lines: int) -> Iterator[RenderableType]:
        """Yield what is shown in this number of lines, without the header's."""
        if not self.count or not lines:
            return
        shown = self.count if lines >= self.wanted else max(1, lines - 1)
        yield from self.show(shown)
        if shown < lines and (shown < self.count or self.hidden):
            yield self.more(shown)


def laid_out(sections: Sequence[Section], height: int | None) -> list[RenderableType]:
    """Return all sections in their order, in at most ``height`` lines.

    On a screen that is too low for the least rows of each they are more.
    """
    given = [one.wanted if height is None else min(one.least, one.wanted) for one in sections]
    if height is not None:
        left = height - sum(given) - sum(one.header for one in sections if one.count)
        for i in sorted(range(len(sections)), key=lambda i: sections[i].rank):
            more = max(0, min(left, sections[i].wanted - given[i]))
            given[i] += more
            left -= more
    return [line for one, lines in zip(sections, given, strict=True) for line in one.lines(lines)]

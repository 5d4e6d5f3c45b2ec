"""What travels: the replay suite's transitions, as a server's tables hold them.

Needs numpy only.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle
from typing import Literal

from benchmarks.replay import workloads
from benchmarks.replay.workloads import BATCH, EPISODE, Columns

SMALL_ROWS = 20_000
ATARI_ROWS = 5_000
"""Small enough that Reverb fills its table in seconds; the same for all sides."""


@dataclass(frozen=True)
class Work:
    """Small transitions or Atari's, stored as they are, or linked: each observation once."""

    kind: Literal["small", "atari"]
    linked: bool = False

    @property
    def rows(self) -> int:
        return SMALL_ROWS if self.kind == "small" else ATARI_ROWS

    @property
    def stored(self) -> workloads.Small | workloads.Atari:
        return workloads.Small(self.rows) if self.kind == "small" else workloads.Atari(self.rows)

    def chunks(self, size: int = EPISODE) -> Iterator[Columns]:
        """As a writer is given them; linked, each step has its newest frame only,
        and a chunk is an episode.
        """
        stored = self.stored
        if not self.linked:
            return stored.chunks(size)
        if isinstance(stored, workloads.Atari):
            return stored.frames()
        return (
            {name: column for name, column in chunk.items() if name != "next_obs"}
            for chunk in stored.episodes()
        )

    def steps(self) -> list[Columns]:
        """Return the steps of one episode."""
        episode = next(self.chunks())
        return [
            {name: column[i] for name, column in episode.items()}
            for i in range(len(episode["reward"]))
        ]

    def blocks(self) -> Iterator[Columns]:
        """Yield blocks of steps of one episode, repeatedly."""
        episode = next(self.chunks())
        cuts = [slice(start, start + BATCH) for start in range(0, EPISODE, BATCH)]
        return cycle([{name: column[cut] for name, column in episode.items()} for cut in cuts])

    def check(self, batch: Columns, rows: int = BATCH) -> None:
        """Raise AssertionError for a batch that does not hold the written data."""
        if self.kind == "small":
            workloads.check_rows(batch)
        else:
            workloads.check_stacks(batch["obs"], batch["next_obs"], batch["terminated"])
        if len(batch["reward"]) != rows:
            raise AssertionError(f"a batch of {len(batch['reward'])} rows, {rows} were asked for")

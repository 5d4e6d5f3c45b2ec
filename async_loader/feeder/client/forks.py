"""Detects forks by a number: every append checks it, so it must not be a system call."""

from __future__ import annotations

import os


class _Forks:
    generation = 0

    def born(self) -> None:
        self.generation += 1


forks = _Forks()
os.register_at_fork(after_in_child=forks.born)

"""Detects forks by a number: every append checks it, so it must not be a system call."""

from __future__ import annotations

from async_loader.process_hooks import ForkStep, at_fork


class _Forks:
    generation = 0

    def born(self) -> None:
        self.generation += 1


forks = _Forks()
at_fork(ForkStep.LOADERS, after_in_child=forks.born)

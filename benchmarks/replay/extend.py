"""Adding one small step of each of 64 environments, in one call."""

from benchmarks.replay import adding

ROW = adding.row(
    "extend", "adding a step of each of 64 environments, one of which ends in every 14th call", 64
)

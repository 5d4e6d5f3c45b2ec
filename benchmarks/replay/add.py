"""Adding one small step."""

from benchmarks.replay import adding

ROW = adding.row("add", "adding one small step", 1)

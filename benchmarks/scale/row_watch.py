"""The CPU time that a scrape each second, and a viewer of the dashboard, cost a feeder."""

from functools import partial

from benchmarks.harness import Contender, Metric, Row, Target
from benchmarks.scale.watching import watched

SCRAPE, VIEWER = "metrics, a scrape each second", "dashboard, one viewer"

ROW = Row(
    "watch",
    "a feeder that is looked at, 16 actors",
    (
        Metric("percent", "% of one core beyond the feeder alone", digits=2),
        Metric("without_percent", "% of one core, the feeder alone", digits=2),
        Metric("asked", "answers a second", "higher", digits=2),
    ),
    (
        Contender(SCRAPE, "project", partial(watched, how="scrape")),
        Contender(VIEWER, "project", partial(watched, how="viewer"), VIEWER),
    ),
    (
        Target("one scrape a second: <= 1% of one core", "percent", 1.0, SCRAPE),
        Target("one viewer: <= 1% of one core", "percent", 1.0, VIEWER),
    ),
    seconds=5.0,
)

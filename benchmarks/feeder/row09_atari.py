"""Row 9: actors insert Atari's transitions one at a time: two stacks of four frames,
or one frame that is linked.
"""

from benchmarks.feeder.inserting import METRICS, contender, reverb, served
from benchmarks.feeder.workloads import Work
from benchmarks.harness import Row, Target

LINKED, TWICE = Work("atari", linked=True), Work("atari")
OURS, OURS_TWICE = "async_loader, linked frames, append", "async_loader, stacked, append"
THEIRS, THEIRS_LINKED = "reverb, stacked", "reverb, linked frames"

ROW = Row(
    "9-atari",
    "service: inserts of Atari transitions, acknowledged",
    METRICS,
    (
        contender(OURS, "project", served, work=LINKED),
        contender(OURS_TWICE, "project", served, work=TWICE),
        contender(
            "async_loader, linked frames, extend", "project", served, work=LINKED, batched=True
        ),
        contender(
            "async_loader, stacked, extend", "project", served, OURS_TWICE, work=TWICE, batched=True
        ),
        contender(THEIRS, "reverb", reverb, OURS_TWICE, work=TWICE),
        contender(THEIRS_LINKED, "reverb", reverb, work=LINKED),
    ),
    (
        Target("stacked: >= 6x Reverb", "rows_per_s_1", 6, OURS_TWICE, (THEIRS,)),
        Target("linked frames: >= 20x Reverb with stacks", "rows_per_s_1", 20, OURS, (THEIRS,)),
    ),
    seconds=1,
)

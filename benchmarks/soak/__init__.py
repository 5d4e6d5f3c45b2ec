"""What takes long: memory over 100,000 batches, of a learner and its workers;
500 rounds of faults; hostile connections; kills of shards and of feeders with kept tables.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROWS = ("memory", "storm", "chaos", "connections", "shards", "kept")


def draw(path: Path, about: Mapping[str, Any], outcomes: Sequence[Any]) -> None:
    """Resident memory of every process against batches: bars would hide what it is for, and
    rounds of faults have no curve.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    measured = [
        one
        for outcome in outcomes
        for one in outcome.measured
        if one.repeats and "rss_mib" in one.repeats[0]
    ]
    figure, axes = pyplot.subplots(
        1, max(1, len(measured)), figsize=(11, 3.5), squeeze=False, layout="constrained"
    )
    for axis, one in zip(axes[0], measured, strict=False):
        figures = one.repeats[0]
        for number, series in enumerate(figures["rss_mib"]):
            batches = [i * figures["batches"] / len(series) for i in range(len(series))]
            axis.plot(
                batches, series, label=f"worker {number}" if number else "learner", linewidth=1
            )
        axis.set_title(one.contender.name, fontsize=9, loc="left")
        axis.set_xlabel("batches", fontsize=8)
        axis.set_ylabel("resident memory, MiB", fontsize=8)
        axis.set_ylim(0, 1.3 * max(map(max, figures["rss_mib"])))
        axis.legend(fontsize=7)
        axis.spines[["top", "right"]].set_visible(False)
    figure.suptitle(f"{about['cpus']} CPUs, {about['date_of_run']}", fontsize=9)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)

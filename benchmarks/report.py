"""What a run says: tables on the terminal, a JSON record, a picture.

Measures and judges nothing.
"""

import json
import textwrap
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.harness import Measured, Metric, Outcome, Row, Verdict

OURS_COLOUR, PEER_COLOUR, LIMIT_COLOUR, TARGET_COLOUR = "#2a6fb0", "#b8bcc4", "#e6dcc0", "#c0392b"

TITLE_WIDTH = 72
"""Characters of a line above a chart."""


def show(console: Console, outcome: Outcome, gained: str = "") -> None:
    """Print one row's figures, medians with the least and the greatest repeat, and its targets.

    ``gained``: what a user gains by it.
    """
    row = outcome.row
    repeats = max(len(measured.repeats) for measured in outcome.measured)
    table = Table(
        title=f"Row {row.key}: {row.title}",
        title_justify="left",
        caption=f"medians of {repeats}, least and greatest; a figure alone is of one run",
    )
    table.add_column("contender", no_wrap=True)
    for metric in row.metrics:
        table.add_column(metric.label, justify="right")
    table.add_column("ours is better by", justify="right")
    for measured in outcome.measured:
        name = measured.contender.name
        cells = [_cell(measured, metric) for metric in row.metrics]
        if measured.not_measured:
            cells = [
                f"[red]not measured: {measured.not_measured}[/red]",
                *[""] * (len(row.metrics) - 1),
            ]
        times = _advantage(outcome, measured)
        table.add_row(
            f"[bold]{name}[/bold]" if _is_ours(name) else name,
            *cells,
            "" if times is None else f"{times:.2f}x",
        )
    console.print(table)
    if gained:
        console.print(f"    {gained}")
    for verdict in outcome.verdicts():
        console.print("   ", _sentence(outcome, verdict))
    for measured in outcome.measured:
        if codes := [code for code in measured.values("exit_code") if code]:
            console.print(
                f"    {measured.contender.name} reported, then ended with exit code {codes[0]} "
                f"({len(codes)}x)"
            )
    console.print()


def _advantage(outcome: Outcome, measured: Measured) -> float | None:
    name, ours = measured.contender.name, outcome.ours_for(measured.contender)
    return None if name == ours else outcome.advantage(ours, [name], outcome.row.metrics[0])


def _is_ours(name: str) -> bool:
    return name.startswith("async_loader")


def _cell(measured: Measured, metric: Metric) -> str:
    values = measured.values(metric.key)
    if not values:
        return ""
    middle, low, high = (
        f"{value:,.{metric.digits}f}"
        for value in (measured.median(metric.key), min(values), max(values))
    )
    return middle if low == high else f"{middle} [dim]{low}-{high}[/dim]"


def _sentence(outcome: Outcome, verdict: Verdict) -> str:
    word = {
        True: "[green]held[/green]",
        False: "[red]missed[/red]",
        None: "[yellow]not measured[/yellow]",
    }[verdict.held]
    if verdict.figure is None:
        return f"{word}  {verdict.target.text}"
    digits = outcome.row.metric(verdict.target.metric).digits
    figure = f"{verdict.figure:.2f}x" if verdict.target.theirs else f"{verdict.figure:,.{digits}f}"
    return f"{word}  {verdict.target.text}: {figure}"


def record(
    path: Path,
    suite: str,
    about: Mapping[str, Any],
    outcomes: Sequence[Outcome],
    kept: Mapping[str, Any] | None = None,
) -> None:
    """Write all measurements of all repeats, and the versions compared with.

    ``kept``: the rows of an earlier record, by key, that stay as they are; `earlier` returns them.
    """
    kept, day = kept or {}, {"date_of_run": about["date_of_run"]}
    rows = [kept.get(one.row.key) or {**_row(one), **day} for one in outcomes]
    document = {
        "suite": suite,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        **about,
        "rows": rows,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(_rounded(document), indent=1) + "\n")


def earlier(
    path: Path, about: dict[str, Any], rows: Sequence[Row]
) -> tuple[dict[str, Any], dict[str, Outcome]]:
    """Return the rows of a record as they are written there, and as outcomes, by key; none if there
    is no record. Adds to ``about`` what they were measured with.

    Raises
    ------
    ValueError
        If another version of a library was measured: rows of one record are to be comparable.
    """
    if not path.exists():
        return {}, {}
    document = json.loads(path.read_text())
    for environment, versions in document["versions"].items():
        now = about["versions"].setdefault(environment, versions)
        if now != versions:
            raise ValueError(
                f"{path.name} was recorded with {environment} {versions}, and now there is {now}: "
                "record all rows again"
            )
    written = {row["row"]: row for row in document["rows"]}
    outcomes = {}
    for row in rows:
        if row.key in written:
            written[row.key].setdefault("date_of_run", document["date_of_run"])
            outcomes[row.key] = _outcome(row, written[row.key])
    return {key: written[key] for key in outcomes}, outcomes


def _outcome(row: Row, written: Mapping[str, Any]) -> Outcome:
    figures = {one["name"]: one for one in written["contenders"]}
    measured = []
    for contender in row.contenders:
        one = figures.get(contender.name, {"not_measured": "added later"})
        measured.append(Measured(contender, one.get("repeats", []), one.get("not_measured")))
    return Outcome(row, tuple(measured))


def _row(outcome: Outcome) -> dict[str, Any]:
    row = outcome.row
    return {
        "row": row.key,
        "title": row.title,
        "metrics": {
            metric.key: f"{metric.label}, {metric.better} is better" for metric in row.metrics
        },
        "contenders": [_contender(outcome, measured) for measured in outcome.measured],
        "targets": [
            {
                "target": verdict.target.text,
                "ours": verdict.target.ours,
                "theirs": list(verdict.target.theirs),
                "metric": verdict.target.metric,
                "bound": verdict.target.bound,
                "figure": verdict.figure,
                "outcome": {True: "held", False: "missed", None: "not measured"}[verdict.held],
            }
            for verdict in outcome.verdicts()
        ],
    }


def _contender(outcome: Outcome, measured: Measured) -> dict[str, Any]:
    contender = measured.contender
    entry: dict[str, Any] = {"name": contender.name, "environment": contender.environment}
    if measured.not_measured:
        entry["not_measured"] = measured.not_measured
    if (times := _advantage(outcome, measured)) is not None:
        entry["ours"], entry["ours_is_better_by"] = outcome.ours_for(contender), times
    medians = {metric.key: measured.median(metric.key) for metric in outcome.row.metrics}
    return {**entry, "medians": medians, "repeats": [dict(figures) for figures in measured.repeats]}


def _rounded(value: Any) -> Any:
    """Round to six significant digits; more would be noise."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, Mapping):
        return {key: _rounded(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(inner) for inner in value]
    return value


def draw(path: Path, about: Mapping[str, Any], outcomes: Sequence[Outcome]) -> None:
    """Draw a chart for every metric that has a target, or leads its row."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    charts = [
        (outcome, metric)
        for outcome in outcomes
        for metric in outcome.row.metrics
        if _worth_a_chart(outcome, metric)
    ]
    if not charts:  # nothing was measured
        return
    pairs = [charts[i : i + 2] for i in range(0, len(charts), 2)]
    heights = [1.0 + 0.22 * max(len(outcome.measured) for outcome, _ in pair) for pair in pairs]
    figure, axes = pyplot.subplots(
        len(pairs),
        2,
        figsize=(14, sum(heights)),
        height_ratios=heights,
        squeeze=False,
        layout="constrained",
    )
    for axis, chart in zip(axes.flat, charts, strict=False):
        _bars(axis, *chart)
    for axis in axes.flat[len(charts) :]:
        axis.set_visible(False)
    figure.suptitle(
        f"{about['cpus']} CPUs, {about['date_of_run']}, medians of {about['repeats']}", fontsize=9
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
    pyplot.close(figure)


def _worth_a_chart(outcome: Outcome, metric: Metric) -> bool:
    says_something = any(measured.median(metric.key) for measured in outcome.measured)
    asked_for = metric is outcome.row.metrics[0] or any(
        target.metric == metric.key for target in outcome.row.targets
    )
    return says_something and asked_for


def _bars(axis: Any, outcome: Outcome, metric: Metric) -> None:
    medians = [
        (measured.contender.name, measured.median(metric.key))
        for measured in reversed(outcome.measured)
    ]
    values = [median or 0.0 for _, median in medians]
    names = [name for name, _ in medians]
    bars = axis.barh(names, values, color=[_colour(name) for name in names], height=0.7)
    axis.bar_label(bars, [_label(median, metric) for _, median in medians], padding=3, fontsize=7)
    if min(values) > 0 and max(values) > 20 * min(values):
        axis.set_xscale("log")
        axis.set_xlim(left=min(values) / 3, right=max(values) * 3)
    else:
        axis.margins(x=0.15)
    for target in outcome.row.targets:
        if target.metric == metric.key and not target.theirs and target.bound > 0:
            axis.axvline(target.bound, color=TARGET_COLOUR, linewidth=1, linestyle="--")
    title = textwrap.fill(f"row {outcome.row.key}: {outcome.row.title}", TITLE_WIDTH)
    axis.set_title(title, fontsize=8, loc="left")
    axis.set_xlabel(f"{metric.label} ({metric.better} is better)", fontsize=7)
    axis.tick_params(labelsize=7)
    axis.spines[["top", "right"]].set_visible(False)


def _colour(name: str) -> str:
    if _is_ours(name):
        return OURS_COLOUR
    return LIMIT_COLOUR if name.startswith("limit") else PEER_COLOUR


def _label(median: float | None, metric: Metric) -> str:
    return "not measured" if median is None else f"{median:,.{metric.digits}f}"

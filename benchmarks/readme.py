"""Tables of figures from the recorded runs. `python -m benchmarks.readme` writes them.

README.md gets one table of three figures, docs/benchmarks.md gets all of them; each page
keeps what stands outside its marks.
"""

import json
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gains import gain

ROOT = Path(__file__).parent.parent
README, PAGE = ROOT / "README.md", ROOT / "docs" / "benchmarks.md"
BEGIN = "<!-- figures: written by python -m benchmarks.readme -->"
END = "<!-- end of figures -->"
RESULTS = ROOT / "benchmarks" / "results"
SUITES = {
    "loader": ("torch", "DI-engine"),
    "replay": ("torch", "cpprb", "torchrl", "stable-baselines3", "tianshou"),
    "trajectories": ("torchrl", "ray", "flashbax", "minari", "stable-baselines3"),
    "feeder": ("dm-reverb", "tensorflow", "pyzmq"),
    "rollouts": ("TransferQueue", "ray"),
    "scale": ("torchrl", "ray"),
    "doors": ("torch", "mxnet", "gluonnlp", "fastai", "DI-engine"),
    "gpu": ("torch", "cpprb", "torchrl", "stable-baselines3"),
}
"""The recorded suites that the pages show, and the libraries whose versions they name."""
TITLES = {
    "loader": "The loader",
    "replay": "The replay table",
    "trajectories": "Sequences and episodes",
    "feeder": "The feeder",
    "rollouts": "Rollouts",
    "scale": "A cluster",
    "doors": "Drop-in modules",
    "gpu": "An accelerator",
}
LINK = "docs/benchmarks.md"

_UNITS = {
    "idle_us": "us", "busy_us": "us", "us": "us", "busy_p99_ms": "ms", "slower_percent": "%",
    "percent": "% of one core", "beyond_percent": "%", "beyond_us": "us", "cpu_us": "us",
    "kept_percent": "%", "first_ms": "ms", "socket_bytes": "bytes", "close_s": "s",
    "start_s": "s", "sum": "ms", "p50": "ms", "left": "things", "left_after_exit": "things",
    "over_gather": "times", "worst": "times", "spread": "of the mean", "lost": "prompts",
    "doubled": "prompts", "stuck": "rounds", "small_inserts": "%", "small_samples": "%",
    "frames_inserts": "%", "frames_samples": "%",
}  # fmt: skip


@dataclass(frozen=True)
class Pick:
    """One line of the README's table: a contender of ours and the best of its peers.

    `among` is a part of the peers' names, where a row measures several kinds of work.
    """

    suite: str
    row: str
    metric: str
    ours: str
    work: str
    among: str = ""


PICKS = (
    Pick("replay", "7", "us", "async_loader",
         "draw 256 of 1,000,000 transitions by priority, and update them"),
    Pick("feeder", "8", "samples_per_s", "async_loader, shm",
         "batches of 256 transitions from a server"),
    Pick("feeder", "9", "rows_per_s_1", "async_loader, append",
         "transitions of one actor into a server, acknowledged"),
)  # fmt: skip


def summary(records: list[dict[str, Any]]) -> str:
    """The README's section with its marks."""
    lines = [BEGIN, "## Measured", "", _method(records[0]), ""]
    lines += ["| work | async_loader | best peer | ratio |", "|---|---|---|---|"]
    lines += [line for pick in PICKS if (line := _picked(pick, records))]
    lines += [END]
    return "\n".join(lines)


def section(records: list[dict[str, Any]]) -> str:
    """The section of docs/benchmarks.md with its marks: of each suite all targets and all
    contenders.
    """
    lines = [BEGIN]
    for results in records:
        lines += [*_suite(results), ""]
    return "\n".join([*lines[:-1], END])


def _picked(pick: Pick, records: list[dict[str, Any]]) -> str | None:
    """One line, or None where this record does not have both sides."""
    rows = [row for results in records if results["suite"] == pick.suite for row in results["rows"]]
    row = next((row for row in rows if str(row.get("row")) == pick.row), None)
    if row is None or pick.metric not in row["metrics"]:
        return None
    measured = {
        one["name"]: one for one in row["contenders"] if _median(one, pick.metric) is not None
    }
    peers = [one for name, one in measured.items() if _is_peer(name) and pick.among in name]
    if pick.ours not in measured or not peers:
        return None
    label = row["metrics"][pick.metric]
    higher = "higher is better" in label
    best = (max if higher else min)(peers, key=lambda one: _median(one, pick.metric))
    ours, unit = measured[pick.ours], label.split(",")[0]
    cells = [f"{number(_median(one, pick.metric))} {unit}" for one in (ours, best)]
    return (
        f"| {pick.work} | {cells[0]} | {best['name']}: {cells[1]} | "
        f"{_ratio(ours, best, pick.metric, higher)} |"
    )


def _is_peer(name: str) -> bool:
    return not name.startswith(("async_loader", "limit:"))


def _median(contender: dict[str, Any], metric: str) -> Any:
    return (contender.get("medians") or {}).get(metric)


def _ratio(ours: dict[str, Any], theirs: dict[str, Any], metric: str, higher: bool) -> str:
    """As the harness has it: the median over the repeats of the ratio within a repeat."""
    pairs = zip(ours["repeats"], theirs["repeats"], strict=False)
    both = [
        (one[metric], other[metric]) for one, other in pairs if metric in one and metric in other
    ]
    ratios = [one / other if higher else other / one for one, other in both]
    return f"{statistics.median(ratios):.3g}x" if ratios else "not measured"


def number(value: float) -> str:
    """Three significant digits, with commas."""
    rounded = float(f"{value:.3g}")
    return f"{rounded:,.0f}" if abs(rounded) >= 100 else f"{rounded:g}"


def _method(results: dict[str, Any]) -> str:
    return (
        f"{results['cpus']} shared cores, {results['machine']}, {results['date_of_run']}; medians. "
        "All libraries ran in turns on this machine, and every batch is fully read. "
        f"[All figures]({LINK}), with the targets that were missed."
    )


def _suite(results: dict[str, Any]) -> list[str]:
    name = results["suite"]
    targets = [(row["title"], target) for row in results["rows"] for target in row["targets"]]
    missed = [(title, target) for title, target in targets if target["outcome"] == "missed"]
    lines = [
        f"## {TITLES[name]}",
        "",
        f"`./scripts/bench {name}` on {results['cpus']} shared cores{_accelerator(results)}, "
        f"{results['date_of_run']}, {results['machine']}, "
        f"{results['repeats']} repeats, medians; {_versions(results)}.{_other_days(results)}"
        + (f" {results['note']}" if "note" in results else ""),
        "",
        f"Of {len(targets)} targets, {len(missed)} are missed.",
        "",
        "| work | target | measured | outcome |",
        "|---|---|---|---|",
    ]
    for title, target in targets:
        lines.append(
            f"| {title} | {target['target']} | {_measured(target)} | {target['outcome']} |"
        )
    lines += ["", "What a user gains by each row:", ""]
    lines += [f"- {row['title']}: {gain(name, row['row'])}" for row in results["rows"]]
    lines += ["", "All contenders, by the first metric of each row:", ""]
    lines += ["| work | contender | measured | async_loader is better by |", "|---|---|---|---|"]
    lines += [line for row in results["rows"] for line in _contenders(row)]
    return [*lines, "", f"![Side by side](figures/{name}.png)"]


def _contenders(row: dict[str, Any]) -> list[str]:
    if not row.get("metrics"):
        return []
    metric, label = next(iter(row["metrics"].items()))
    lines = []
    for one in row["contenders"]:
        middle, times = _median(one, metric), one.get("ours_is_better_by")
        measured = "not measured" if middle is None else f"{number(middle)} {label}"
        lines.append(
            f"| {row['title']} | {one['name']} | {measured} | "
            f"{'' if times is None else f'{times:.3g}x'} |"
        )
    return lines


def _other_days(results: dict[str, Any]) -> str:
    """Return a sentence about the rows that were measured on other days than the last run."""
    days: dict[str, list[str]] = {}
    for row in results["rows"]:
        days.setdefault(row.get("date_of_run", results["date_of_run"]), []).append(row["title"])
    days.pop(results["date_of_run"], None)
    return "".join(f" Measured on {day}: {'; '.join(rows)}." for day, rows in sorted(days.items()))


def _accelerator(results: dict[str, Any]) -> str:
    if "accelerator" not in results:
        return ""
    return f" and one {results['accelerator']} (driver {results['driver']}, CUDA {results['cuda']})"


def _versions(results: dict[str, Any]) -> str:
    """Versions of the libraries compared with. The project's environment wins, as it has torch
    too.
    """
    installed = results["versions"]
    found = {name: version for peer in installed.values() for name, version in peer.items()}
    found |= installed["project"]
    return ", ".join(
        f"{name} {found.get(name) or 'not measured'}" for name in SUITES[results["suite"]]
    )


def _measured(target: dict[str, Any]) -> str:
    figure = target.get("figure")
    if figure is None:
        return "not measured"
    unit = "x" if target["theirs"] else _UNITS[target["metric"]]
    return f"{figure:.3g} {unit}".replace(" x", "x").replace(" %", "%")


def recorded() -> list[dict[str, Any]]:
    """The recorded full runs; there is always one of the loader."""
    files = [RESULTS / f"{name}.json" for name in SUITES]
    return [json.loads(file.read_text()) for file in files if file.exists()]


def replaced(text: str, written: str, begin: str = BEGIN, end: str = END) -> str:
    """A page's text with what stands between its marks, and the marks, replaced."""
    return text[: text.index(begin)] + written + text[text.index(end) + len(end) :]


def main() -> None:
    records = recorded()
    for page, written in ((README, summary(records)), (PAGE, section(records))):
        page.write_text(replaced(page.read_text(), written))


if __name__ == "__main__":
    main()

"""The README's tables of figures, from what was recorded:
`python -m benchmarks.readme` writes it between its marks.
"""

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
BEGIN, END = "<!-- figures: written by python -m benchmarks.readme -->", "<!-- end of figures -->"
RESULTS = ROOT / "benchmarks" / "results"
SUITES = {
    "loader": ("torch", "DI-engine"),
    "replay": ("torch", "cpprb", "torchrl", "stable-baselines3", "tianshou"),
    "feeder": ("dm-reverb", "tensorflow", "pyzmq"),
    "doors": ("torch", "mxnet", "gluonnlp", "fastai", "DI-engine"),
}
"""Suites on the page if recorded, and the libraries whose versions it names."""

_UNITS = {
    "idle_us": "us",
    "busy_us": "us",
    "us": "us",
    "busy_p99_ms": "ms",
    "slower_percent": "%",
    "kept_percent": "%",
}
_UNITS |= {"first_ms": "ms"}
_UNITS |= {
    "socket_bytes": "bytes",
    "close_s": "s",
    "start_s": "s",
    "left": "things",
    "left_after_exit": "things",
}


def section(records: list[dict[str, Any]]) -> str:
    """The section with its marks: of each suite one line per target, held or missed,
    as recorded.
    """
    lines = [BEGIN, "## Measured", ""]
    for results in records:
        lines += [*_suite(results), ""]
    return "\n".join([*lines[:-1], END])


def _suite(results: dict[str, Any]) -> list[str]:
    name = results["suite"]
    lines = [
        f"`./scripts/bench {name}` on {results['cpus']} shared cores, {results['date_of_run']}, "
        f"{results['machine']}, "
        f"{results['repeats']} repeats, medians; {_versions(results)}. Each contender runs in a "
        "process of its own, "
        "in turns with the others, and every byte of every batch is read on all sides.",
        "",
        "| work | target | measured | |",
        "|---|---|---|---|",
    ]
    for row in results["rows"]:
        lines += [
            f"| {row['title']} | {target['target']} | {_measured(target)} | {target['outcome']} |" for target in row["targets"]
        ]
    return [*lines, "", f"![Side by side](benchmarks/results/{name}.png)"]


def _versions(results: dict[str, Any]) -> str:
    """Of the libraries compared with; the project's environment comes first,
    as it has torch too.
    """
    installed = results["versions"]
    found = {
        **{name: version for peer in installed.values() for name, version in peer.items()},
        **installed["project"],
    }
    return ", ".join(f"{name} {found.get(name) or 'not measured'}" for name in SUITES[results["suite"]])


def _measured(target: dict[str, Any]) -> str:
    figure = target.get("figure")
    if figure is None:
        return "not measured"
    unit = "x" if target["theirs"] else _UNITS[target["metric"]]
    return f"{figure:.3g} {unit}".replace(" x", "x").replace(" %", "%")


def recorded() -> list[dict[str, Any]]:
    """Return the recorded full runs; the loader's is one."""
    files = [RESULTS / f"{name}.json" for name in SUITES]
    return [json.loads(file.read_text()) for file in files if file.exists()]


def main() -> None:
    page = ROOT / "README.md"
    text = page.read_text()
    head, tail = text[: text.index(BEGIN)], text[text.index(END) + len(END) :]
    page.write_text(head + section(recorded()) + tail)


if __name__ == "__main__":
    main()

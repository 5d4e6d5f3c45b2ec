"""The README's table of figures, from what was recorded: `python -m benchmarks.readme` writes it between its marks."""

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
BEGIN, END = "<!-- figures: written by python -m benchmarks.readme -->", "<!-- end of figures -->"
_UNITS = {"samples_per_s": "x", "ms": "x", "idle_us": "us", "busy_us": "us", "busy_p99_ms": "ms", "slower_percent": "%"}
_UNITS |= {"close_s": "s", "start_s": "s", "left": "things", "left_after_exit": "things"}


def section(results: dict[str, Any]) -> str:
    """The section with its marks: one line per target, held or missed, as recorded."""
    versions = results["versions"]
    lines = [
        BEGIN,
        "## Measured",
        "",
        f"`./scripts/bench loader` on {results['cpus']} shared cores, {results['date_of_run']}, {results['machine']}, "
        f"{results['repeats']} repeats, medians; torch {versions['project']['torch']}, "
        f"DI-engine {versions.get('ding', {}).get('DI-engine', 'not measured')}. Each contender runs in a process of its own, "
        "in turns with the others, and every byte of every batch is read on all sides.",
        "",
        "| work | target | measured | |",
        "|---|---|---|---|",
    ]
    for row in results["rows"]:
        for target in row["targets"]:
            figure, unit = target.get("figure"), _UNITS[target["metric"]]
            measured = "not measured" if figure is None else f"{figure:.3g} {unit}".replace(" x", "x").replace(" %", "%")
            lines.append(f"| {row['title']} | {target['target']} | {measured} | {target['outcome']} |")
    lines += ["", "![Side by side](benchmarks/results/loader.png)", END]
    return "\n".join(lines)


def recorded() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((ROOT / "benchmarks" / "results" / "loader.json").read_text())
    return loaded


def main() -> None:
    page = ROOT / "README.md"
    text = page.read_text()
    head, tail = text[: text.index(BEGIN)], text[text.index(END) + len(END) :]
    page.write_text(head + section(recorded()) + tail)


if __name__ == "__main__":
    main()

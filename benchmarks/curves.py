"""`python -m benchmarks.curves`: draw docs/r2d2.png from the curves that the example recorded."""

import json
from pathlib import Path

DOCS = Path(__file__).resolve().parent.parent / "docs"
SOLVED = 450


def main() -> None:
    """Draw both runs over environment steps."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 3.2), layout="constrained")
    for name, label in (("r2d2", "recurrent"), ("r2d2-memoryless", "memoryless control")):
        points = json.loads((DOCS / "curves" / f"{name}.json").read_text())["points"]
        axes.plot(*zip(*points, strict=True), label=label)
    axes.axhline(SOLVED, color="grey", linewidth=0.8, linestyle="--")
    axes.set(xlabel="environment steps", ylabel="mean return of 20 greedy episodes", ylim=(0, 500))
    axes.set_title("R2D2 on CartPole without velocities")
    axes.legend()
    figure.savefig(DOCS / "r2d2.png", dpi=120)


if __name__ == "__main__":
    main()

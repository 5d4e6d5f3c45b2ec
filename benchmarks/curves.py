"""`python -m benchmarks.curves`: draw docs/r2d2.png and docs/ppo_feeder.png from the curves that
the examples recorded.
"""

import json
from pathlib import Path

DOCS = Path(__file__).resolve().parent.parent / "docs"
R2D2 = {"r2d2": "recurrent", "r2d2-memoryless": "memoryless control"}
PPO = {"ppo_feeder": "four actors, a policy lag of 1 version at most"}


def draw(picture: str, runs: dict[str, str], title: str, of: str, solved: float) -> None:
    """Draw runs over environment steps."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 3.2), layout="constrained")
    for name, label in runs.items():
        points = json.loads((DOCS / "curves" / f"{name}.json").read_text())["points"]
        axes.plot(*zip(*points, strict=True), label=label)
    axes.axhline(solved, color="grey", linewidth=0.8, linestyle="--")
    axes.set(xlabel="environment steps", ylabel=f"mean return of {of}", ylim=(0, 500))
    axes.set_title(title)
    axes.legend()
    figure.savefig(DOCS / f"{picture}.png", dpi=120)


def main() -> None:
    """Draw all of them."""
    import matplotlib

    matplotlib.use("agg")
    draw("r2d2", R2D2, "R2D2 on CartPole without velocities", "20 greedy episodes", 450)
    draw("ppo_feeder", PPO, "PPO on CartPole, through a feeder", "100 episodes", 475)


if __name__ == "__main__":
    main()

"""`python -m benchmarks.curves`: draw docs/*.png from the curves that examples recorded."""

import json
from pathlib import Path

DOCS = Path(__file__).resolve().parent.parent / "docs"
R2D2 = {"r2d2": "recurrent", "r2d2-memoryless": "memoryless control"}
PPO = {"ppo_feeder": "four actors, a policy lag of 1 version at most"}


def main() -> None:
    """Draw what the examples recorded, over environment steps."""
    import matplotlib

    matplotlib.use("agg")
    draw(
        "r2d2",
        {"r2d2": "recurrent", "r2d2-memoryless": "memoryless control"},
        "R2D2 on CartPole without velocities",
        "mean return of 20 greedy episodes",
        500,
        450,
    )
    draw(
        "her_reach",
        {"her-reach": "hindsight goals", "her-reach-control": "goals as they were"},
        "DDPG on a point of a square, reward only there",
        "share of 50 tests that succeed",
        1.03,
    )
    draw(
        "ppo_feeder",
        {"ppo_feeder": "four actors, a policy lag of 1 version at most"},
        "PPO on CartPole, through a feeder",
        "mean return of 100 episodes",
        500,
        475,
    )
    draw_kills()


def draw(
    picture: str,
    curves: dict[str, str],
    title: str,
    ylabel: str,
    top: float,
    line: float | None = None,
) -> None:
    """Draw curves, by the names of their files, into docs; ``line``: a height that is marked."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 3.2), layout="constrained")
    for name, label in curves.items():
        points = json.loads((DOCS / "curves" / f"{name}.json").read_text())["points"]
        axes.plot(*zip(*points, strict=True), label=label)
    if line is not None:
        axes.axhline(line, color="grey", linewidth=0.8, linestyle="--")
    axes.set(xlabel="environment steps", ylabel=ylabel, ylim=(0, top))
    axes.set_title(title)
    axes.legend()
    figure.savefig(DOCS / f"{picture}.png", dpi=120)
    pyplot.close(figure)


def draw_kills() -> None:
    """Draw what `python -m benchmarks.killed` recorded, with a line for each kill."""
    from matplotlib import pyplot

    found = json.loads((DOCS / "curves" / "killed.json").read_text())
    figure, axes = pyplot.subplots(figsize=(8.5, 3.2), layout="constrained")
    control = json.loads((DOCS / "curves" / "killed-control.json").read_text())["points"]
    axes.plot(*zip(*control, strict=True), color="silver", label="not disturbed")
    axes.plot(*zip(*found["points"], strict=True), color="black", linewidth=1.2, label="killed")
    axes.axhline(475, color="grey", linewidth=0.8, linestyle="--")
    for kind, color in {"the feeder": "C3", "the learner": "C0", "an actor": "C2"}.items():
        for i, (at, _) in enumerate(one for one in found["kills"] if one[1] in kind.split()):
            axes.axvline(at, color=color, linewidth=1, label=None if i else f"SIGKILL of {kind}")
    axes.set(xlabel="seconds", ylabel="mean return of 20 episodes", ylim=(0, 510))
    axes.set_title("The demo: a part of it is killed every 30 s on average")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    figure.savefig(DOCS / "figures" / "killed.png", dpi=120)
    pyplot.close(figure)


if __name__ == "__main__":
    main()

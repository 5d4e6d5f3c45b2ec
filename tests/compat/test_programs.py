"""Programs that were written for another loader run with nothing but their import line changed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

PROGRAMS = Path(__file__).parent / "programs"
OURS = {
    "from mxnet import gluon": "from async_loader.compat import gluon",
    "from mxnet.gluon.data import": "from async_loader.compat.gluon import",
    "import gluonnlp as nlp": "from async_loader.compat import gluonnlp as nlp",
    "from ding.utils.data import": "from async_loader.compat.ding import",
    "from fastai.data.load import": "from async_loader.compat.fastai import",
}


@pytest.fixture
def run():
    """Runs a program, and returns the values of its variables at its end."""
    space: dict[str, Any] = {}

    def run(name: str) -> dict[str, Any]:
        text = (PROGRAMS / f"{name}.py").read_text()
        theirs = [line for line in OURS if re.search(f"^{line}", text, re.MULTILINE)]
        assert len(theirs) == 1, "one line says where the loader comes from"
        assert "async_loader" not in text
        space["__name__"] = f"program_{name}"
        exec(compile(text.replace(theirs[0], OURS[theirs[0]]), f"{name}.py", "exec"), space)
        return space

    yield run
    # functions of a program, held by its workers, would keep its loaders alive
    space.clear()


def test_images_with_workers_and_what_rolls_over(run):
    end = run("gluon_mnist")
    assert end["accuracy"] > 0.9
    assert end["seen"] == 3 * 500 // 32 * 32


def test_texts_that_are_padded_in_threads(run):
    end = run("gluon_texts")
    assert end["names"] == {
        name for _, _, name in (end["train"][i] for i in range(len(end["train"])))
    }
    assert end["accuracy"] > 0.7


def test_buckets_for_two_devices(run):
    end = run("gluonnlp_sharded")
    assert end["groups"] == 6 * len(end["batch_sampler"])
    assert end["accuracy"] > 0.9


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_learner_of_ding_learns(run, num_workers):
    learner = run("ding_learner")
    losses, actions = learner["main"](num_workers)
    assert len(losses) == 20
    assert losses[-1] < losses[0]
    assert [set(one) for one in actions] == [{"action", "logit"}] * 3
    assert actions[0]["logit"].shape == (2,)


@pytest.mark.parametrize(("num_workers", "chunk_size"), [(0, None), (2, 4)])
def test_frames_arrive_once_each_and_in_order(run, num_workers, chunk_size):
    frames = run("ding_frames")
    assert frames["main"](num_workers, chunk_size).tolist() == 2 * list(range(32))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_images_of_fastai(run, num_workers):
    losses, seen = run("fastai_images")["main"](num_workers)
    assert losses[-1] < losses[0]
    assert seen == [61] * 3  # of 64, three cannot be read
    if not num_workers:  # with workers the batches differ where items are skipped
        # of fastai 2.8.12 with torch 2.13
        assert losses == pytest.approx([1.5547, 1.5827, 1.4190], abs=1e-2)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_texts_of_fastai(run, num_workers):
    losses, shapes = run("fastai_texts")["main"](num_workers)
    assert len(losses) == 30
    assert losses[-1] < losses[0]
    assert shapes == [(8, 9), (8, 7), (8, 5), (6, 4)]

"""Programs in the documented style of gluon and gluonnlp run here
with nothing but their import line changed.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parent / "programs"

OURS = {
    "from mxnet import gluon": "from async_loader.compat import gluon",
    "from mxnet.gluon.data import": "from async_loader.compat.gluon import",
    "import gluonnlp as nlp": "from async_loader.compat import gluonnlp as nlp",
}


_spaces: list[dict] = []


def run(name: str) -> dict:
    """Return the values of the program's variables at its end."""
    text = (PROGRAMS / name).read_text()
    theirs = [line for line in OURS if re.search(f"^{line}", text, re.MULTILINE)]
    assert len(theirs) == 1
    space: dict = {}
    _spaces.append(space)
    exec(compile(text.replace(theirs[0], OURS[theirs[0]]), str(PROGRAMS / name), "exec"), space)
    return space


@pytest.fixture(autouse=True)
def _programs_end():
    yield
    # functions of a program, held by its workers, would keep its loaders alive
    _spaces.pop().clear()


def test_images_with_workers_and_what_rolls_over():
    end = run("gluon_mnist.py")
    assert end["accuracy"] > 0.9
    assert end["seen"] == 3 * 500 // 32 * 32


def test_texts_that_are_padded_in_threads():
    end = run("gluon_texts.py")
    assert end["names"] == {
        name for _, _, name in (end["train"][i] for i in range(len(end["train"])))
    }
    assert end["accuracy"] > 0.7


def test_buckets_for_two_devices():
    end = run("gluonnlp_sharded.py")
    assert end["groups"] == 6 * len(end["batch_sampler"])
    assert end["accuracy"] > 0.9

"""The public names: all written down in tests/data/api.txt, all importable,
none of the words of before left anywhere.
"""

from __future__ import annotations

import difflib
import importlib
import re
import sys

import pytest
import surface

import async_loader
from async_loader import feeder, name_hints, source, table
from async_loader.errors import MissingExtra
from async_loader.feeder.client.writer import RemoteWriter
from async_loader.replay.writer import LocalWriter

writers = (LocalWriter, RemoteWriter)


def test_the_surface_is_the_one_on_record():
    before, now = surface.RECORD.read_text().splitlines(), surface.text().splitlines()
    changes = "\n".join(difflib.unified_diff(before, now, "on record", "now", lineterm="", n=0))
    assert not changes, (
        f"the public interface has changed; if it is meant, run: python tests/surface.py\n{changes}"
    )


@pytest.mark.parametrize("module", surface.MODULES)
def test_every_public_module_lists_its_names(module):
    found = importlib.import_module(module)
    assert found.__all__
    assert all(hasattr(found, name) for name in found.__all__)
    assert len(set(found.__all__)) == len(found.__all__)


@pytest.mark.parametrize(
    "kind",
    [
        async_loader.AsyncDataLoader,
        async_loader.DataLoader,
        async_loader.ReplayBuffer,
        async_loader.Sampler,
        async_loader.Table,
        async_loader.Writer,
        table.VectorWriter,
        source.Reader,
        source.Source,
        source.Leasing,
        feeder.Client,
        feeder.TableClient,
        *writers,
    ],
    ids=lambda kind: kind.__name__,
)
def test_a_shared_class_documents_its_thread_rule(kind):
    assert "Threads: " in (kind.__doc__ or "")


COMPAT = importlib.import_module("async_loader.compat").__all__
SHOWN = [
    *surface.MODULES,
    "async_loader.compat",
    "async_loader.testing",
    *(f"async_loader.compat.{name}" for name in COMPAT),
    "async_loader.compat.gluon.data",
    "async_loader.compat.gluonnlp.data",
]


@pytest.mark.parametrize("module", SHOWN)
def test_dir_of_a_public_module_shows_its_names_and_no_others(module):
    found = importlib.import_module(module)
    assert dir(found) == sorted(found.__all__)
    assert not hasattr(found, "nothing_of_that_kind")
    with pytest.raises(ImportError, match="cannot import name 'nothing_of_that_kind'"):
        exec(f"from {module} import nothing_of_that_kind")


EXPECTED = [(module, name) for module, known in name_hints.PUBLIC.items() for name in sorted(known)]


@pytest.mark.parametrize(("module", "name"), EXPECTED)
def test_an_expected_name_is_answered_with_the_right_one(module, name):
    remedy, found = name_hints.PUBLIC[module][name], importlib.import_module(module)
    assert getattr(found, name, None) is None
    with pytest.raises(AttributeError, match=re.escape(remedy)):
        getattr(found, name)
    with pytest.raises(ImportError, match=re.escape(remedy)):
        exec(f"from {module} import {name}")


@pytest.mark.parametrize(
    ("module", "name", "library", "extra"),
    [
        ("async_loader.recording", "Recorder", "gymnasium", "demo"),
        ("async_loader.recording", "VectorRecorder", "gymnasium", "demo"),
        ("async_loader.compat.sb3", "ReplayBuffer", "stable_baselines3.common.buffers", "sb3"),
        ("async_loader.compat.sb3", "DictReplayBuffer", "stable_baselines3.common.buffers", "sb3"),
    ],
)
def test_a_name_whose_library_is_not_installed_is_no_attribute(
    module, name, library, extra, monkeypatch
):
    found = importlib.import_module(module)
    monkeypatch.delitem(vars(found), name, raising=False)
    for one in [one for one in sys.modules if one.startswith(f"{module}.")]:
        monkeypatch.delitem(sys.modules, one)
        monkeypatch.delattr(found, one.removeprefix(f"{module}."), raising=False)
    monkeypatch.setitem(sys.modules, library, None)
    assert not hasattr(found, name)
    with pytest.raises(AttributeError, match=rf"async_loader\[{extra}\]"):
        getattr(found, name)
    with pytest.raises(MissingExtra, match=rf"async_loader\[{extra}\]"):
        exec(f"from {module} import {name}")


# -- words of before -------------------------------------------------------------------------------

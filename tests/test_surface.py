"""The public names: all written down in tests/data/api.txt, all importable,
none of the words of before left anywhere.
"""

from __future__ import annotations

import ast
import difflib
import importlib
import inspect
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import surface

import async_loader
from async_loader import feeder, names, source, table
from async_loader.errors import MissingExtra
from async_loader.feeder.client.writer import RemoteWriter
from async_loader.replay.writer import LocalWriter

writers = (LocalWriter, RemoteWriter)

ROOT = Path(__file__).parent.parent


def test_the_surface_is_the_one_on_record():
    before, now = surface.RECORD.read_text().splitlines(), surface.text().splitlines()
    changes = "\n".join(difflib.unified_diff(before, now, "on record", "now", lineterm="", n=0))
    assert not changes, (
        f"the public interface has changed; if it is meant, run: python tests/surface.py\n{changes}"
    )


def test_a_changed_signature_is_seen():
    def one(index: int, /, *, timeout_s: float | None = None, **fields: Any) -> None: ...

    assert (
        surface.signature(one)
        == "(index: int, /, *, timeout_s: float | None = None, **fields: Any) -> None"
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


def test_every_module_for_another_library_is_listed():
    files = (ROOT / "async_loader" / "compat").iterdir()
    named = {file.stem for file in files if file.is_dir() or file.suffix == ".py"}
    helpers = {"__init__", "__pycache__", "saved_table", "stored_column", "torch_errors"}
    assert named - helpers == set(COMPAT)


EXPECTED = [(module, name) for module, known in names.PUBLIC.items() for name in sorted(known)]


@pytest.mark.parametrize(("module", "name"), EXPECTED)
def test_an_expected_name_is_answered_with_the_right_one(module, name):
    remedy, found = names.PUBLIC[module][name], importlib.import_module(module)
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

OURS: dict[str, Any] = {
    name: getattr(async_loader, name)
    for name in async_loader.__all__
    if inspect.isclass(getattr(async_loader, name))
    or inspect.isfunction(getattr(async_loader, name))
}
GONE = {
    r"\bwho_waits\b": "stats().waiting",
    r"\.feedback\(|\bdef feedback\b": "update_priorities",
    r"\bReplayStats\b": "TableStats",
    r"\basync_loader\.naming\b": "async_loader.names",
    r"\boverlapping=": "nothing",
    r"\bkind: (rank|samples_per_insert|min_size)\b": "the class in snake case: rank_prioritized, "
    "rate_limiter",
    r"\bReplayBuffer\.load\(": "table.load(path), or ReplayBuffer.from_checkpoint(path)",
    r"\b(StreamWriter|RemoteProcessWriter|ProcessWriter)\b": "LocalWriter",
    r"\b(writer_handle|WriterHandle)\b": "a feeder's writer",
}
"""Old words in any text, and ours."""
ABOUT_WRONG_NAMES = {
    "async_loader/names.py",
    "async_loader/other_names.py",
    "tests/test_names.py",
    "tests/test_surface.py",
    "tests/test_loader_interface.py",
    "tests/faults/test_engine_ends.py",
    "docs/guides/conventions.md",
    "CHANGELOG.md",
}
"""Files with old words, which test that these are refused."""


def texts() -> Iterator[tuple[str, str]]:
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    ).stdout
    for name in listed.splitlines():
        if (
            name.endswith((".py", ".md", ".yaml", ".yml", ".toml"))
            and name not in ABOUT_WRONG_NAMES
            and (ROOT / name).exists()
        ):
            yield name, (ROOT / name).read_text()


def scripts(name: str, text: str) -> Iterator[ast.AST]:
    """Return the Python code in a file: all of it, or the examples on a page."""
    if name.endswith(".py"):
        yield ast.parse(text)
    elif name.endswith(".md"):
        for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
            yield ast.parse(textwrap.dedent(block))


def imported(tree: ast.AST) -> dict[str, Any]:
    """Return the package's names in a script, and the objects that they stand for."""
    found, others = {}, set()
    for node in ast.walk(tree):
        where = (node.module or "").split(".") if isinstance(node, ast.ImportFrom) else []
        if (
            isinstance(node, ast.ImportFrom)
            and where[0] == "async_loader"
            and "compat" not in where
        ):
            found.update(
                {
                    alias.asname or alias.name: OURS[alias.name]
                    for alias in node.names
                    if alias.name in OURS
                }
            )
        elif isinstance(node, ast.ImportFrom):
            others |= {alias.asname or alias.name for alias in node.names}
    return {name: value for name, value in found.items() if name not in others}


def wrong_keywords(tree: ast.AST) -> Iterator[tuple[int, str, str]]:
    """Yield line, callable and keyword of each call of ours with an unknown keyword."""
    ours = imported(tree)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        if isinstance(node.func, ast.Name) and node.func.id in ours:
            parameters = inspect.signature(ours[node.func.id]).parameters
        elif isinstance(node.func, ast.Attribute) and node.func.attr in METHODS:
            parameters = METHODS[node.func.attr]
        else:
            continue
        if not any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
            for keyword in node.keywords:
                said = (
                    keyword.arg in names.SAY
                    if isinstance(node.func, ast.Name)
                    else keyword.arg == "timeout"
                )
                if keyword.arg and said and keyword.arg not in parameters:
                    yield node.lineno, ast.unparse(node.func), keyword.arg


METHODS = {
    name: inspect.signature(getattr(async_loader.ReplayBuffer, name)).parameters
    for name in ("sample", "source", "update_priorities", "end_episode")
}
"""Methods that objects of other libraries have too: only ``timeout`` is checked."""


@pytest.mark.slow
def test_no_call_uses_an_old_keyword():
    found = [
        f"{name}: {function}(..., {keyword}=), in line {line} of its script"
        for name, text in texts()
        for tree in scripts(name, text)
        for line, function, keyword in wrong_keywords(tree)
    ]
    assert found == []


@pytest.mark.slow
def test_no_text_uses_an_old_word():
    found = [
        f"{name}: {match[0]!r}: say {ours}"
        for name, text in texts()
        for word, ours in GONE.items()
        for match in re.finditer(word, text)
    ]
    assert found == []


@pytest.mark.parametrize(
    ("script", "keyword"),
    [
        ("from async_loader import AsyncDataLoader\nAsyncDataLoader(f, 8, timeout=3)", "timeout"),
        ("from async_loader import DataLoader as D\nD(f, 8, context='fork')", "context"),
        ("buffer.sample(8, timeout=3)", "timeout"),
        ("from async_loader.replay.samplers import Prioritized\nPrioritized(new='given')", "new"),
    ],
)
def test_a_planted_old_word_is_found(script, keyword):
    assert [found[2] for found in wrong_keywords(ast.parse(script))] == [keyword]


@pytest.mark.parametrize(
    "script",
    [
        "from torch.utils.data import DataLoader\nDataLoader(f, 8, timeout=3)",
        "from async_loader.compat.torch import DataLoader\nDataLoader(f, 8, timeout=3)",
        "from async_loader import AsyncDataLoader\nAsyncDataLoader(f, 8, timeout_s=3)",
        "subprocess.run([], timeout=3)",
    ],
)
def test_words_of_other_libraries_are_not_reported(script):
    assert list(wrong_keywords(ast.parse(script))) == []


def test_the_record_is_written_by_the_command_in_the_message():
    assert f"python {Path(surface.__file__).relative_to(ROOT)}" == "python tests/surface.py"
    assert sys.modules["surface"] is surface

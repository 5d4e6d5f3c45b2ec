"""The package says things in the field's words: names in code, and plain sentences in prose."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "async_loader"

OLD_NAMES = {
    "": "bell gate patience life living live",
    "compat": "making moving retaining explaining delegating door doors",
    "dataset": "ferry landing crossing opaque own sampled streams shift shifts here told where",
    "feeder": (
        "desk hall post ports closings waits warming inbound intake outbound outlet tray trays "
        "copied lent shelf shelves spot parcel parcels returned line writer_line reader_line "
        "planes plane news part payload way packer came arrived lying filled claim front "
        "gatekeeper serving reading pace forks"
    ),
    "pipeline": (
        "crew pool core team inline office overseer desks shift shifts here told where workshop "
        "orders work_orders rota tickets nudge drained place places slotted loose filler assembly "
        "packing parcel delivery live living"
    ),
    "replay": (
        "owner inserter inserting drawer drawing drawings stage staging fit fitting recipe taking "
        "private last piece lane lanes link ledger supply permits say terms"
    ),
}
"""Invented names by the folder that had them; their replacements are in docs/glossary.md."""

KEPT = {
    "feeder/client/notifier.py:_Forks": "counts forks: a plain noun",
    "feeder/serving.py": "the module of FeederProcess",
    "feeder/wire/codes.py:Plane": "control plane and data plane, as in docs/wire.md",
    "lifecycle.py:Patience": "a parameter type of Source.plan in tests/data/api.txt",
    "replay/table/insert.py:Inserter": "a plain agent noun, like writer",
}
"""Names of `OLD_NAMES` that are still in use, each with the reason."""

THREADS = {
    "background-jobs",
    "cluster",
    "dashboard",
    "feeder-client",
    "http",
    "http-viewer",
    "kernel-warmup",
    "limiter",
    "lookup",
    "owner",
    "parent",
    "producer",
    "report",
    "shard",
    "streamer",
    "torch",
    "watchdog",
    "worker",
    "worker-pool",
    "writer-service",
}
"""The parts of a thread's name after "async-loader-"."""

BANNED = re.compile(
    r"\b(?:[Nn]obody|[Nn]o one|[Ww]hoever|[Ss]omebody|[Ss]omeone|[Aa]nybody|[Aa]nyone|"
    r"[Ss]o many|is none|[Ww]hat came)\b"
)
"""Words for persons, who do nothing here, and for things that deserve a noun."""


def words_of(name: str) -> str:
    """Return the name of a class, module or key in lower case with underscores."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().strip("_")


def old(room: str, name: str) -> bool:
    found = f"{OLD_NAMES.get(room, '')} {OLD_NAMES['']}".split()
    return words_of(name) in found


def sources() -> Iterator[tuple[str, str, ast.Module]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        yield name, name.partition("/")[0] if "/" in name else "", ast.parse(path.read_text())


def old_names_of(name: str, room: str, module: ast.Module) -> Iterator[str]:
    """Yield the module and its classes and statistics if their names are invented ones."""
    if old(room, Path(name).stem):
        yield name
    for node in ast.walk(module):
        if not isinstance(node, ast.ClassDef):
            continue
        if old(room, node.name):
            yield f"{name}:{node.name}"
        if node.name.endswith(("Stats", "Status")):
            for field in node.body:
                if isinstance(field, ast.AnnAssign) and old(room, ast.unparse(field.target)):
                    yield f"{name}:{node.name}.{ast.unparse(field.target)}"


def status_keys(module: ast.Module) -> Iterator[str]:
    for node in ast.walk(module):
        if isinstance(node, ast.Dict):
            for key in node.keys:
                if isinstance(key, ast.Constant) and isinstance(key.value, str):
                    yield key.value


def thread_names(module: ast.Module) -> Iterator[str]:
    for node in ast.walk(module):
        text = node.value if isinstance(node, ast.Constant) else None
        if isinstance(text, str) and (found := re.match(r"async-loader-([a-z-]*)", text)):
            yield found[1].rstrip("-")


def test_modules_and_classes_have_names_of_the_field():
    found = {one for source in sources() for one in old_names_of(*source)}
    assert found == KEPT.keys()


def test_a_planted_name_is_found():
    planted = ast.parse("class Outlet: ...\nclass TableStats:\n    hungry: int\n    parcels: int")
    found = set(old_names_of("feeder/server/trays.py", "feeder", planted))
    assert found == {
        "feeder/server/trays.py",
        "feeder/server/trays.py:Outlet",
        "feeder/server/trays.py:TableStats.parcels",
    }


def test_status_keys_have_names_of_the_field():
    found = {
        f"{name}: {key}"
        for name, room, module in sources()
        if Path(name).stem in ("status", "stats", "report")
        for key in status_keys(module)
        if old(room, key)
    }
    assert not found


def test_thread_names_are_on_record():
    found = {one for _, _, module in sources() for one in thread_names(module) if one}
    assert found <= THREADS


def prose() -> Iterator[Path]:
    for folder in ("async_loader", "docs", "README.md", "tests", "benchmarks", "examples"):
        path = ROOT / folder
        if path.is_file():
            yield path
        for suffix in ("py", "md"):
            yield from sorted(path.rglob(f"*.{suffix}"))


def banned_in(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines with such words, also in the name of a test."""
    for number, line in enumerate(text.splitlines(), 1):
        test = re.search(r"def (test_\w+)", line)
        if BANNED.search(line) or (test and BANNED.search(test[1].replace("_", " "))):
            yield number, line.strip()


def test_prose_names_things_rather_than_persons():
    found = [
        f"{name}:{number}: {line}"
        for path in prose()
        if (name := path.relative_to(ROOT).as_posix())
        not in ("tests/test_words.py", "tests/test_docs.py")
        for number, line in banned_in(path.read_text())
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "line",
    [
        "Whoever calls it",
        "so many rows",
        "for what is none of these",
        "def test_a_lost_row_harms_nobody():",
    ],
)
def test_a_planted_word_is_found(line):
    assert list(banned_in(f"first\n{line}")) == [(2, line)]


def test_code_that_asks_for_none_is_no_prose():
    assert not list(banned_in("if value is None:"))
    assert not list(banned_in("def test_it(nobody_there): ..."))

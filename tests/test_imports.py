"""Who may import whom (DESIGN section 3): downward only, siblings never, torch late and in few
places.
"""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "async_loader"

# From the bottom up. Modules on one line are siblings, which do not import each other, except
# those in SAME_FLOOR.
FLOORS = [
    {"public_names"},
    {"errors", "hint_tables"},
    {
        "process_hooks",
        "histograms",
        "validation",
        "tree",
        "name_hints",
        "spaces",
        "schema",
        "lifecycle",
        "stats",
        "tensors",
        "source",
        "batch_layout",
        "batch_format",
        "table",
    },
    {"shm"},
    {"sources", "replay", "pipeline", "targets"},
    {"async_data_loader", "dataset", "recording", "offline", "rollouts"},
    {"compat", "feeder"},
    {"observe"},
    {"scale"},
    {"doctor"},
    {"cli_cluster"},
    {"cli"},
    {"__main__"},
]
LEVEL = {name: level for level, names in enumerate(FLOORS) for name in names}
SAME_FLOOR = FLOORS[2]
"""These modules may import each other in this order: none imports one further right."""
ORDER = [
    "process_hooks",
    "histograms",
    "validation",
    "name_hints",
    "lifecycle",
    "stats",
    "tree",
    "tensors",
    "spaces",
    "schema",
    "source",
    "batch_layout",
    "batch_format",
    "table",
]

_DELIVERY = {
    "pipeline.batches.collate",
    "pipeline.device.streamer",
    "pipeline.device.cuda_backend",
    "pipeline.batches.arena",
    "pipeline.workers.work",
    "dataset",
}
_START = {"pipeline.engine_core", "pipeline.workers.worker_handle"}
"""They import it between forking workers and starting threads, never half-way."""
TORCH = {"tensors", *_DELIVERY, *_START, "compat", "testing", "doctor"}
"""The only modules that import torch, and (but for those in TORCH_AT_ONCE) inside functions."""
TORCH_AT_ONCE = {"compat"}
ELSEWHERE = {
    "zmq": {"feeder"},
    "nacl": {"feeder.zmtp.curve"},
    "msgspec": {
        "feeder",
        "scale.cluster_settings",
        "scale.operations",
        "scale.shard_actor",
        "scale.table",
    },
    "yaml": {"feeder"},
    "prometheus_client": {"observe.exporter"},
    "gymnasium": {
        "recording.recorder",
    },
    "ray": {"scale.ray_library"},
    "tensordict": {"batch_format", "compat.torchrl"},
    "accelerate": {"compat.accelerate"},
    "stable_baselines3": {"compat.sb3.transitions"},
    "cloudpickle": {"pipeline.codec"},
    "h5py": {"offline.hdf5"},
    "minari": {"offline.hdf5"},
    "numba": {"replay.base.compiled", "replay.base.kernel_cache", "replay.kernels"},
    "llvmlite": {"replay.kernels"},
}
"""Optional and heavy libraries, and the parts that import them."""

EXCEPTIONS = {
    # what a name that is not there says; imported late
    ("public_names", "errors"),
    ("public_names", "name_hints"),
}
TYPES_OF = {("table", "replay")}
"""Protocols may name types of modules above them, for type checkers only."""


@dataclass(frozen=True)
class Import:
    module: str
    target: str
    late: bool
    typing: bool
    line: int

    def __str__(self) -> str:
        return f"{self.module}:{self.line} imports {self.target}{' late' if self.late else ''}"


def imports(tree: ast.AST, module: str, *, is_package: bool = False) -> Iterator[Import]:
    """Return all imports of a module, with absolute targets; ``async_loader.x.y`` as ``x.y``."""

    def walk(node: ast.AST, late: bool, typing: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                for alias in child.names:
                    yield Import(module, short(alias.name), late, typing, child.lineno)
            elif isinstance(child, ast.ImportFrom):
                base = absolute(child)
                for alias in child.names:
                    name = (
                        base
                        if base not in ("async_loader", *packages())
                        else f"{base}.{alias.name}"
                    )
                    yield Import(module, short(name), late, typing, child.lineno)
            elif (
                isinstance(child, ast.Call)
                and getattr(child.func, "attr", getattr(child.func, "id", "")) == "import_module"
            ):
                for argument in child.args:
                    if isinstance(argument, ast.Constant):
                        yield Import(module, short(argument.value), late, typing, child.lineno)
            function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            checking = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
            yield from walk(child, late or function, typing or checking)

    def absolute(node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        parts = ["async_loader", *module.split(".")]
        parts = parts[: len(parts) - node.level + is_package]
        return ".".join([*parts, *([node.module] if node.module else [])])

    yield from walk(tree, False, False)


@functools.cache
def packages() -> set[str]:
    return {
        f"async_loader.{path.parent.relative_to(PACKAGE)}".replace("/", ".")
        for path in PACKAGE.rglob("__init__.py")
    }


def short(name: str) -> str:
    return name.removeprefix("async_loader.") if name.startswith("async_loader.") else name


def within(module: str, places: set[str]) -> bool:
    return any(module == place or module.startswith(place + ".") for place in places)


def allowed(one: Import, root: str, target: str) -> bool:
    return (one.module, target) in EXCEPTIONS or (one.typing and (root, target) in TYPES_OF)


def breaches(found: Iterator[Import]) -> list[str]:
    """Describe the breach of a rule."""
    wrong = []
    for one in found:
        root, target = one.module.split(".")[0], one.target.split(".")[0]
        if target == "torch" and not one.typing:
            if not within(one.module, TORCH):
                wrong.append(f"{one}: only {', '.join(sorted(TORCH))} may")
            elif not one.late and not within(one.module, TORCH_AT_ONCE):
                wrong.append(f"{one}: only inside functions")
        elif target in ELSEWHERE and not within(one.module, ELSEWHERE[target]):
            wrong.append(f"{one}: only {', '.join(ELSEWHERE[target])} may")
        elif target == "async_loader" or root == target or allowed(one, root, target):
            continue
        elif target == "testing":
            wrong.append(f"{one}: the package does not import its tests' helpers")
        elif root == "testing" and target in LEVEL and LEVEL[target] >= LEVEL["async_data_loader"]:
            wrong.append(f"{one}: testing imports what is below the loader")
        elif root in SAME_FLOOR and target in SAME_FLOOR:
            if ORDER.index(target) > ORDER.index(root) and not one.typing:
                wrong.append(f"{one}: {target} builds on {root}, not the other way round")
        elif root in LEVEL and target in LEVEL and LEVEL[target] >= LEVEL[root]:
            wrong.append(f"{one}: imports go downward only")
    return wrong


def file_of(target: str, known: Container[str]) -> str:
    """The file that an import names: of ``replay.samplers.Fifo`` it is ``replay.samplers``."""
    while target and target not in known:
        target = target.rpartition(".")[0]
    return target


def circles(found: Iterable[Import], depth: int | None = None) -> list[str]:
    """Files that import each other in a circle, late or for types too; with ``depth`` folders of
    that many names, where a file in a room's own folder stands for itself.
    """
    known = set(modules())

    def node(module: str) -> str:
        return ".".join(module.split(".")[:depth])

    below: dict[str, set[str]] = {}
    for one in found:
        source, target = node(one.module), node(file_of(one.target, known))
        others = below.setdefault(source, set())
        inside = target.split(".")[0] == source.split(".")[0] and target != source
        if inside and (one.module, target) not in EXCEPTIONS:
            others.add(target)
            below.setdefault(target, set())
    while free := [name for name, others in below.items() if not others]:
        below = {
            name: others.difference(free) for name, others in below.items() if name not in free
        }
    return sorted(below)


@functools.cache
def modules() -> dict[str, tuple[ast.AST, bool]]:
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if package else parts)
        if name:  # the package's own __init__ names all public modules, lazily
            found[name] = (ast.parse(path.read_text(), str(path)), package)
    return found


@functools.cache
def every_import() -> list[Import]:
    return [
        one
        for name, (tree, package) in modules().items()
        for one in imports(tree, name, is_package=package)
    ]


@pytest.mark.slow
def test_imports_go_downward_only():
    found = modules()
    assert len(found) > 30
    assert breaches(iter(every_import())) == []


@pytest.mark.parametrize("depth", [None, 2])
def test_no_files_or_folders_of_a_room_import_each_other_in_a_circle(depth):
    assert circles(every_import(), depth) == []


def test_every_module_has_a_floor():
    assert {name.split(".")[0] for name in modules()} - {"testing"} <= set(LEVEL)


@pytest.mark.parametrize(
    ("module", "code", "text"),
    [
        ("schema", "from async_loader.shm.segment import Segment", "downward only"),
        ("errors", "from async_loader import tree", "downward only"),
        (
            "sources.columns",
            "from async_loader.pipeline.batches.collate import collate",
            "downward only",
        ),
        ("tree", "from async_loader.schema import Schema", "schema builds on tree"),
        ("tensors", "import torch", "only inside functions"),
        ("replay.buffer", "import zmq", "only feeder may"),
        ("table", "from async_loader.replay.rate_limiter import RateLimiter", "downward only"),
    ],
)
def test_a_planted_breach_is_caught(module, code, text):
    wrong = breaches(imports(ast.parse(code), module))
    assert len(wrong) == 1, wrong
    assert text in wrong[0]


# -- what runs without torch (M18) -----------------------------------------------------------------


def run(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], check=True, timeout=100, capture_output=True, text=True
    ).stdout


HEAVY = """import sys
heavy = {'torch', 'zmq', 'ray', 'gymnasium', 'matplotlib', 'numba'} & set(sys.modules)
assert not heavy, heavy"""
TABLES = HEAVY.replace(", 'numba'", "")
"""Tables run compiled kernels; importing a table and the parts that the loader needs does not."""


@pytest.mark.parametrize(
    "code",
    [
        "import async_loader",
        "from async_loader import AsyncDataLoader, DataLoader, ReplayBuffer, Schema, Field, END",
        "from async_loader import Table, Writer, Source, Sampler, Applied, errors",
        """import numpy as np
from async_loader.sources.columns import ColumnsSource
from async_loader.lifecycle import Patience
source = ColumnsSource({'x': np.arange(100), 'o': {'y': np.zeros((100, 3))}}, 0)
plan = source.plan(8, Patience())
from async_loader.pipeline.workers.sample_work import read_fresh
assert (read_fresh(source.reader(), plan.index, (0,))[-1] == plan.index).all()""",
        """import numpy as np
from async_loader import ReplayBuffer
buffer = ReplayBuffer(100)
for i in range(10):
    buffer.add(x=np.arange(3), r=0.5)
assert buffer.sample(4)['x'].shape == (4, 3)""",
        """from async_loader.pipeline.batches import collate
import numpy as np
assert collate.collate([{'x': 1.0, 'a': np.zeros(3)}] * 2)['a'].shape == (2, 3)""",
    ],
    ids=["import", "public names", "protocols", "columns", "replay", "collate"],
)
def test_tables_and_columns_run_without_torch(code):
    run(f"{code}\n{TABLES if 'buffer.add' in code else HEAVY}")


WORKERS = """
import os, sys
import numpy as np
from async_loader import AsyncDataLoader

def main():
    jobs = lambda n: [lambda: {{"torch": "torch" in sys.modules, "x": np.arange(3), "f": 0.5}}] * n
    options = dict(num_workers=2, multiprocessing_context={method!r}, timeout_s=60)
    with AsyncDataLoader(jobs, 4, **options) as loader:
        seen = [next(loader)["torch"].any().item() for _ in range(4)]
    with AsyncDataLoader({{"x": np.arange(100)}}, 4, **options) as loader:
        assert "torch" in sys.modules
        next(loader)
        for handle in loader._engine.core.pool.handles:
            maps = open(f"/proc/{{handle.pid}}/maps").read()
            assert "libtorch" not in maps
    assert seen == [False] * 4, seen

if __name__ == "__main__":
    main()
"""


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_workers_on_the_array_path_run_without_torch(method, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(WORKERS.format(method=method))
    subprocess.run([sys.executable, str(script)], check=True, timeout=100)

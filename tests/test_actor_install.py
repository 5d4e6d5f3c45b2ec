"""requirements-actor.txt is enough for an actor: in a virtual environment that has nothing else."""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest

from async_loader import Field
from async_loader.feeder import connect

ROOT = Path(__file__).parent.parent
WANTED = [
    line.split("#")[0].strip()
    for line in (ROOT / "requirements-actor.txt").read_text().splitlines()
    if line.split("#")[0].strip()
]

ACTOR = """
import sys
import numpy as np
from async_loader import connect

with connect(sys.argv[1], name="actor") as client:
    weights = client.latest("policy")
    assert weights.version == 3, weights
    with client.table("replay").writer() as writer:
        for step in range(5):
            writer.append(
                obs=weights.tensors["bias"], reward=float(step), terminated=False, truncated=False
            )
    with client.table("replay").vector_writer(2, autoreset="next_step") as writer:
        obs, no = np.ones((2, 4), np.float32), np.zeros(2, np.bool_)
        writer.append(
            obs=obs, reward=np.ones(2, np.float32), next_obs=obs, terminated=no, truncated=no
        )
    print(client.stats())
assert not {"torch", "numba", "llvmlite", "cloudpickle"} & set(sys.modules)
"""


def name_of(requirement: str) -> str:
    return re.split(r"[^\w.-]", requirement, maxsplit=1)[0].lower()


def with_dependencies(requirements: list[str]) -> set[str]:
    """The installed distributions that these need, themselves too."""
    found: set[str] = set()
    left = [name_of(one) for one in requirements]
    while left:
        name = left.pop()
        if name in found:
            continue
        try:
            needs = metadata.requires(name) or []
        except metadata.PackageNotFoundError:  # for another Python or system
            continue
        found.add(name)
        left += [name_of(one) for one in needs if "extra ==" not in one]
    return found


@pytest.fixture(scope="module")
def actor_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The interpreter of a new environment, with what `WANTED` names and this package."""
    folder = tmp_path_factory.mktemp("actor")
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=120
    )
    site = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder)}))
    site.mkdir(parents=True, exist_ok=True)
    for name in with_dependencies(WANTED):
        files = metadata.files(name) or []
        for top in {file.parts[0] for file in files if file.parts[0] not in ("..", "__pycache__")}:
            origin, target = Path(str(metadata.distribution(name).locate_file(top))), site / top
            if not target.exists():
                target.symlink_to(origin)
    (site / "async_loader").symlink_to(ROOT / "async_loader")
    return str(folder / "bin/python")


@pytest.mark.slow
def test_an_actor_works_without_torch_and_numba(actor_python: str) -> None:
    for absent in ("torch", "numba", "cloudpickle"):
        search = (
            f"import importlib.util as u; raise SystemExit(u.find_spec({absent!r}) is not None)"
        )
        assert subprocess.run([actor_python, "-c", search], timeout=60).returncode == 0
    schema = {
        "obs": Field((4,), "float32", next="next_obs"),
        "reward": "float32",
        "terminated": "bool",
        "truncated": "bool",
    }
    with connect("embedded", tables={"replay": {"capacity": 100, "schema": schema}}) as client:
        client.publish("policy", {"bias": np.zeros(4, np.float32)}, version=3)
        run = [actor_python, "-c", ACTOR, client.address]
        done = subprocess.run(run, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        assert "7 rows added, 7 acknowledged" in done.stdout


@pytest.mark.parametrize("command", [["doctor"], ["doctor", "--json"], ["status", "--help"]])
def test_the_commands_run_without_torch_and_numba(actor_python: str, command: list[str]) -> None:
    run = [actor_python, "-m", "async_loader", *command]
    done = subprocess.run(run, capture_output=True, text=True, timeout=120)
    assert done.returncode in (0, 1), done.stderr
    assert "Traceback" not in done.stderr
    if command[0] == "doctor":
        assert "torch" in done.stdout
        assert "not installed" in done.stdout


CALLS = [
    "from async_loader import AsyncDataLoader",
    "from async_loader import DataLoader",
    "from async_loader import ReplayBuffer; ReplayBuffer(9).add(x=1)",
    "from async_loader import connect; connect('embedded')",
    "import async_loader.compat.torch",
    "from async_loader.batch_format import checked; checked('torch')",
]


@pytest.mark.parametrize("call", CALLS)
def test_what_an_actor_lacks_is_said_with_the_installation_that_has_it(
    actor_python: str, call: str
) -> None:
    done = subprocess.run([actor_python, "-c", call], capture_output=True, text=True, timeout=120)
    assert done.returncode != 0
    last = done.stderr.strip().splitlines()[-1]
    assert "is not installed: requirements-actor.txt" in last
    assert "pip install ." in last

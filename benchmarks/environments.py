"""The virtual environments that contenders run in, and how each is made. Runs no benchmark."""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree

from benchmarks.harness import ROOT

HOME = Path(os.environ.get("ASYNC_LOADER_BENCH_ENVS", ROOT / ".bench-envs"))
"""Set to another folder if several checkouts share the environments."""
INSTALL_LIMIT_S = 1800


@dataclass(frozen=True)
class Environment:
    """Installed step by step: a later step may contradict an earlier one,
    as old peers and new torch do.
    """

    name: str
    steps: tuple[tuple[str, ...], ...]
    probe: str
    versions_of: tuple[str, ...]

    @property
    def python(self) -> Path:
        return HOME / self.name / "bin" / "python"

    def recipe(self) -> str:
        return hashlib.sha256(
            repr((self.steps, self.probe, sys.version_info[:2])).encode()
        ).hexdigest()


DING_NEEDS = (
    "easydict",
    "pyyaml",
    "cloudpickle",
    "tabulate",
    "click",
    "requests",
    "gymnasium",
    "h5py",
    "opencv-python-headless",
    "tensorboardX",
    "enum_tools",
    "trueskill",
    "readerwriterlock",
    "pynng",
    "scipy",
    "matplotlib",
)
"""Dependencies of DI-engine; its own requirements name versions
that no longer install beside this torch.
"""

DING = Environment(
    "ding",
    (
        ("torch==2.13.0", "numpy<2", "psutil"),
        ("--no-deps", "DI-engine==0.5.3"),
        ("DI-treetensor==0.5.0", "DI-toolkit==0.3.0", *DING_NEEDS, "numpy<2"),
        ("numpy<2", "flask", "responses", "urlobject", "yattag", "setuptools<67"),
        ("gym==0.26.2",),
    ),
    "from ding.utils.data import AsyncDataLoader",
    ("DI-engine", "torch", "numpy"),
)
REPLAY = Environment(
    "replay-peers",
    (
        ("torch==2.13.0", "numpy", "psutil"),
        (
            "torchrl==0.14.1",
            "tensordict==0.14.3",
            "cpprb==11.*",
            "stable-baselines3",
            "torch==2.13.0",
        ),
    ),
    "import cpprb, stable_baselines3.common.buffers, torchrl.data",
    ("cpprb", "torchrl", "tensordict", "stable-baselines3", "torch", "numpy"),
)
RLOX = Environment(
    "rlox",
    (("torch==2.13.0", "numpy", "psutil", "gymnasium"), ("--no-deps", "rlox==1.2.0")),
    "import rlox",
    ("rlox", "numpy"),
)
TIANSHOU = Environment(
    "tianshou",
    (("torch==2.13.0", "numpy", "psutil"), ("tianshou==2.0.1", "torch==2.13.0")),
    "from tianshou.data import PrioritizedReplayBuffer",
    ("tianshou", "torch", "numpy"),
)
REVERB = Environment(
    "reverb",
    (("dm-reverb[tensorflow]==0.14.0", "psutil"),),
    "import reverb",
    ("dm-reverb", "tensorflow", "numpy"),
)
"""Without torch: its numpy is that of 2023, and the learner of this side reads arrays."""

GLUON = Environment(
    "gluon",
    (("mxnet==1.9.1", "numpy<1.24", "psutil"), ("--no-deps", "gluonnlp==0.8.3")),
    "from mxnet import gluon; from gluonnlp.data import FixedBucketSampler, ShardedDataLoader",
    ("mxnet", "gluonnlp", "numpy"),
)
"""The last gluonnlp that is all Python; its later ones do not compile with this Python,
and load in the same way.
"""

FASTAI_NEEDS = (
    "fastcore",
    "fastprogress",
    "matplotlib",
    "pandas",
    "scikit-learn",
    "pillow",
    "pyyaml",
    "fastdownload",
    "fasttransform",
    "plum-dispatch<2.10",
    "requests",
    "psutil",
)
FASTAI = Environment(
    "fastai",
    (
        ("torch==2.13.0", "numpy"),
        ("--no-deps", "fastai==2.8.12", "torchvision==0.28.0"),
        FASTAI_NEEDS,
    ),
    "from fastai.data.load import DataLoader",
    ("fastai", "torch", "numpy"),
)

RAY = Environment(
    "ray-peers",
    (
        ("torch==2.13.0", "numpy", "psutil"),
        ("torchrl==0.14.1", "tensordict==0.14.3", "ray==2.60.0", "torch==2.13.0"),
    ),
    "import ray; from torchrl.data import RayReplayBuffer",
    ("ray", "torchrl", "tensordict", "torch", "numpy"),
)
RLLIB = Environment(
    "rllib",
    (("torch==2.13.0", "numpy", "psutil"), ("ray[rllib]==2.60.0",)),
    "from ray.rllib.utils.replay_buffers.episode_replay_buffer import EpisodeReplayBuffer",
    ("ray", "torch", "numpy"),
)
TRANSFER_QUEUE = Environment(
    "transfer-queue",
    (
        ("torch==2.13.0", "numpy", "psutil"),
        ("TransferQueue==0.1.11", "ray==2.60.0", "torch==2.13.0"),
    ),
    "import transfer_queue",
    ("TransferQueue", "ray", "torch", "numpy"),
)
FLASHBAX = Environment(
    "flashbax",
    (("flashbax", "numpy", "psutil"),),
    "import flashbax",
    ("flashbax", "jax", "numpy"),
)
MINARI = Environment(
    "minari",
    (("minari[hdf5]==0.5.4", "pillow", "numpy", "psutil"),),
    "import h5py, minari",
    ("minari", "h5py", "numpy"),
)
CODECS = Environment(
    "codecs",
    (("gymnasium[atari]", "opencv-python-headless", "numpy", "psutil"),
     ("cramjam", "lz4", "zstandard", "blosc2")),
    "import ale_py, blosc2, cramjam, cv2, lz4.block, zstandard",
    ("cramjam", "lz4", "zstandard", "blosc2", "numpy"),
)  # fmt: skip

_PEERS = (
    DING, REPLAY, RLOX, TIANSHOU, REVERB, GLUON, FASTAI, RAY, RLLIB, TRANSFER_QUEUE, FLASHBAX,
    MINARI, CODECS,
)  # fmt: skip
PEERS = {peer.name: peer for peer in _PEERS}
PROJECT_VERSIONS_OF = ("async-loader", "torch", "numpy", "pyzmq")


class CannotMake(Exception):
    """An environment could not be made; the text names the failed step."""


def interpreter(name: str, say: Callable[[str], None]) -> Path | str:
    """Return the Python of environment `name`, created if necessary,
    or the reason why there is no such Python.
    """
    if name == "project":
        return Path(sys.executable)
    try:
        return _made(PEERS[name], say)
    except CannotMake as reason:
        say(f"[red]{reason}[/red]")
        return f"no environment: {reason}"


def _made(peer: Environment, say: Callable[[str], None]) -> Path:
    made = HOME / peer.name / "recipe"
    if made.exists() and made.read_text() == peer.recipe():
        return peer.python
    say(
        f"making {HOME.name}/{peer.name}, once; it takes some minutes and about 1.5 GB (log: "
        f"{HOME.name}/{peer.name}.log)"
    )
    rmtree(HOME / peer.name, ignore_errors=True)
    HOME.mkdir(exist_ok=True)
    with open(HOME / f"{peer.name}.log", "w") as log:
        _step([sys.executable, "-m", "venv", str(HOME / peer.name)], "venv", log)
        for packages in peer.steps:
            say(f"  pip install {' '.join(packages)}")
            _step(
                [str(peer.python), "-m", "pip", "install", *packages],
                f"pip install {packages[-1]}",
                log,
            )
        _step([str(peer.python), "-c", peer.probe], peer.probe, log)
    made.write_text(peer.recipe())
    return peer.python


def _step(command: list[str], name: str, log: object) -> None:
    try:
        subprocess.run(
            command,
            check=True,
            timeout=INSTALL_LIMIT_S,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )  # type: ignore[call-overload]
    except subprocess.CalledProcessError as error:
        raise CannotMake(f"'{name}' failed with exit code {error.returncode}") from error
    except subprocess.TimeoutExpired as error:
        raise CannotMake(f"'{name}' took more than {INSTALL_LIMIT_S} s") from error


def versions(name: str, python: Path | str) -> dict[str, str | None]:
    """Return the installed versions of the packages that matter to the figures."""
    packages = PROJECT_VERSIONS_OF if name == "project" else PEERS[name].versions_of
    if isinstance(python, str):
        return dict.fromkeys(packages)
    code = (
        "import importlib.metadata as m, json, sys\n"
        "def v(p):\n"
        "    try: return m.version(p)\n"
        "    except m.PackageNotFoundError: return None\n"
        "print(json.dumps({'python': sys.version.split()[0], **{p: v(p) for p in sys.argv[1:]}}))"
    )
    found = subprocess.run(
        [str(python), "-c", code, *packages], check=True, capture_output=True, text=True, timeout=60
    )
    return dict(json.loads(found.stdout))

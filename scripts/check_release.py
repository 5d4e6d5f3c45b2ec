"""What a release has to hold: called by ``scripts/release`` with an archive, or in an environment
that a wheel was installed into.
"""

import logging
import os
import re
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path

WANTED = (
    "CHANGELOG.md", "LICENSE", "configs/feeder.yaml", "docs/index.md", "docs/guides/replay.md",
    "requirements-actor.txt", "scripts/test", "tests/conftest.py",
)  # fmt: skip
TEMPLATE = re.compile(r"\[yyyy\]|\[name of copyright owner\]")


def sdist(path: str) -> None:
    with tarfile.open(path) as archive:
        names = archive.getnames()
        root = names[0].split("/")[0]
        assert not (missing := [one for one in WANTED if f"{root}/{one}" not in names]), missing
        licence = archive.extractfile(f"{root}/LICENSE")
        assert licence is not None
        assert not TEMPLATE.search(licence.read().decode()), "LICENSE is still a template"


def wheel(path: str) -> None:
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        (about,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        text = archive.read(about).decode()
    assert any(name.endswith("configs/feeder.yaml") for name in names), "it lacks the configs"
    assert "Project-URL: Source" in text
    near = re.findall(r"\]\((?!https?:|#)[^)]*\)", text)
    assert not near, f"links that lead nowhere on another page: {near}"
    assert any(name.endswith(".nbc") for name in names), "its kernels are not compiled"


class Compiled(logging.Handler):
    """Notes that a kernel was compiled."""

    def __init__(self) -> None:
        super().__init__()
        self.facts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.facts.append(record.getMessage())


def installed(path: str, readme: str) -> None:
    wheel(path)
    noted = Compiled()
    log = logging.getLogger("async_loader")
    log.addHandler(noted)
    log.setLevel(logging.INFO)
    began = time.monotonic()
    for block in re.findall(r"```python\n(.*?)```", Path(readme).read_text(), re.S):
        exec(compile(block, "README.md", "exec"), {"__name__": "__main__"})
    seconds = time.monotonic() - began
    compiled = [fact for fact in noted.facts if "compil" in fact]
    if os.uname().machine == "x86_64":
        assert not compiled, compiled
    command = Path(sys.executable).with_name("async-loader")
    for arguments in (["--version"], ["serve", "--help"]):
        subprocess.run([command, *arguments], check=True, stdout=subprocess.DEVNULL)
    print(f"README's blocks: {seconds:.1f} s; compiled: {compiled or 'nothing'}")


if __name__ == "__main__":
    {"sdist": sdist, "installed": installed}[sys.argv[1]](*sys.argv[2:])

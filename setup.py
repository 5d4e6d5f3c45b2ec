"""Builds the package with its compiled kernels: the first use of an installation loads them."""

import os
import re
import shutil
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py

LIMIT_S = 300
_SETTINGS = ConfigParser(interpolation=None)
_SETTINGS.read("setup.cfg", encoding="utf-8")
REPOSITORY = _SETTINGS["metadata"]["url"]


def long_description() -> str:
    """README.md, read elsewhere: its links to files of the repository are whole addresses."""
    readme = Path("README.md").read_text(encoding="utf-8")
    readme = re.sub(r"(!\[[^]]*\]\()(?!https?:)", rf"\1{REPOSITORY}/raw/main/", readme)
    return re.sub(r"(?<!!)(\[[^]]*\]\()(?!https?:|#)", rf"\1{REPOSITORY}/blob/main/", readme)


class BuildPy(build_py):
    """Copies the modules, then compiles the kernels beside them, for any processor of this kind.

    A package without compiled kernels works as well: it compiles them at its first use, as it does
    with another numba. So an error here is printed, and the build goes on.
    """

    def run(self) -> None:
        super().run()
        home = Path.cwd() if self.editable_mode else Path(self.build_lib).resolve()
        if not self.editable_mode:  # what an earlier build compiled from other sources
            shutil.rmtree(home / "async_loader/replay/__pycache__", ignore_errors=True)
        paths = [str(home), os.environ.get("PYTHONPATH", "")]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "PYTHONDONTWRITEBYTECODE": "1",  # compiled modules are the installer's work
            "NUMBA_CPU_NAME": "generic",
        }
        environment.pop("NUMBA_CACHE_DIR", None)
        compile_ = [sys.executable, "-m", "async_loader.replay.kernel_build"]
        try:
            subprocess.run(compile_, env=environment, cwd=home, check=True, timeout=LIMIT_S)
        except (OSError, subprocess.SubprocessError) as error:
            print(f"the kernels are not compiled ahead ({error})", file=sys.stderr)


class WithKernels(Distribution):
    """Has compiled code: a wheel of it is named after the Python and the platform."""

    def has_ext_modules(self) -> bool:
        return True


setup(
    cmdclass={"build_py": BuildPy},
    distclass=WithKernels,
    long_description=long_description(),
    long_description_content_type="text/markdown",
)

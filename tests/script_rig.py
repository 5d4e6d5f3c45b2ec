"""Runs scripts, each in a process of its own, forked from one that has only imported what they use.

Importing torch and the package takes longer than most examples. The script is the process's
``__main__``: it runs as ``python SCRIPT`` does, to the end of the interpreter.
"""

from __future__ import annotations

import builtins
import gc
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
LIMIT_S = 200.0


class Scripts:
    """The process that the scripts are forked from.

    Parameters
    ----------
    options : list of str
        Of the interpreter.
    """

    def __init__(self, options: list[str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, *options, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            text=True,
        )

    def run(self, script: Path) -> tuple[int, str]:
        """Run a script in its folder; return its exit code and what it has written to stderr.

        A script that takes longer than `LIMIT_S` is killed, and its exit code is -14.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(str(script)), file=self._process.stdin, flush=True)
        code: int = json.loads(self._process.stdout.readline())
        return code, _errors_of(script).read_text()

    def close(self) -> None:
        self._process.communicate()


def _errors_of(script: Path) -> Path:
    return script.with_suffix(".stderr")


def _forked(lines: Any) -> Path | None:
    """Fork for each line. Return its script in the forked process, ``None`` at the end in this."""
    for line in lines:
        script = Path(json.loads(line))
        pid = os.fork()
        if not pid:
            return script
        _, status = os.waitpid(pid, 0)
        print(json.dumps(os.waitstatus_to_exitcode(status)), flush=True)
    return None


def _begin(script: Path) -> None:
    """Take the place of an interpreter that was started for the script."""
    signal.setitimer(signal.ITIMER_REAL, LIMIT_S)  # SIGALRM: Python has no handler for it
    os.chdir(script.parent)
    sys.argv, sys.path[0] = [str(script)], str(script.parent)
    with open(os.devnull, "r+b") as null, open(_errors_of(script), "wb") as errors:
        for number, file in enumerate((null, null, errors)):
            os.dup2(file.fileno(), number)


def _run(script: Path) -> None:
    """Run a script in the namespace of this process's ``__main__``, which has nothing else then."""
    code = compile(script.read_text(), str(script), "exec")
    names = {"__name__": "__main__", "__file__": str(script), "__builtins__": builtins}
    main = sys.modules["__main__"].__dict__
    main.clear()  # from here on this function has no global names
    main.update(names, __spec__=None)
    exec(code, main)


if __name__ == "__main__":
    import torch  # noqa: F401

    import async_loader.feeder.server  # noqa: F401
    from async_loader import ReplayBuffer

    with ReplayBuffer(10) as loads_kernels:
        loads_kernels.add(x=1.0)
        loads_kernels.sample(1)
    gc.freeze()  # a collection in a fork would copy every page of what was imported
    chosen = _forked(sys.stdin)
    if chosen is not None:
        _begin(chosen)
        _run(chosen)

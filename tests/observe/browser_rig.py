"""A headless Chromium, driven over the WebDriver protocol of Debian's chromium-driver."""

from __future__ import annotations

import base64
import contextlib
import json
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
LOOK_S = 0.2
PATIENCE = 300


class Browser:
    """One window."""

    def __init__(self, driver: str, session: str) -> None:
        self._home = f"{driver}/session/{session}"

    def call(self, method: str, path: str, **body: object) -> Any:
        data = None if method in ("GET", "DELETE") else json.dumps(body).encode()
        request = urllib.request.Request(f"{self._home}{path}", data=data, method=method)
        request.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.load(answer)["value"]

    def open(self, url: str) -> None:
        self.call("POST", "/url", url=url)

    def run(self, script: str) -> Any:
        return self.call("POST", "/execute/sync", script=script, args=[])

    def wait_for(self, expression: str) -> Any:
        """Wait in the page until a JavaScript expression is true, and return its value."""
        script = f"""
            const done = arguments[0]; let left = {PATIENCE};
            const look = () => {{
              let found = null;
              try {{ found = {expression}; }} catch (e) {{ }}
              if (found || left-- <= 0) done(found); else setTimeout(look, {LOOK_S * 1000});
            }};
            look();"""
        found = self.call("POST", "/execute/async", script=script, args=[])
        assert found, f"{expression} did not become true; the page shows: {self.text()}"
        return found

    def text(self) -> str:
        return str(self.run("return document.body.innerText"))

    def values(self) -> dict[str, str]:
        """Return the exact values of the elements that carry one."""
        return dict(
            self.run(
                "return Object.fromEntries([...document.querySelectorAll('[data-v]')]"
                ".map(e => [e.dataset.v, e.dataset.exact]))"
            )
        )

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.call("GET", "/screenshot")))


@contextlib.contextmanager
def browser(
    folder: Path, width: int = 1200, height: int = 900, dark: bool = False
) -> Iterator[Browser]:
    """Start a browser. Without one the test is skipped."""
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("chromium and chromium-driver are not installed")
    process = subprocess.Popen(
        [driver, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if "on port" in line and line.rstrip().endswith("."):
                address = f"http://127.0.0.1:{line.rstrip(chr(10) + '.').split()[-1]}"
                break
        else:
            pytest.fail("chromedriver has ended")
        flags = [*FLAGS, f"--window-size={width},{height}", f"--user-data-dir={folder}/browser"]
        if dark:
            flags.append("--blink-settings=preferredColorScheme=0")
        wanted = {
            "browserName": "chrome",
            "goog:chromeOptions": {"binary": chromium, "args": flags},
        }
        request = urllib.request.Request(
            f"{address}/session",
            data=json.dumps({"capabilities": {"alwaysMatch": wanted}}).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=120) as answer:
            session = json.load(answer)["value"]["sessionId"]
        window = Browser(address, session)
        window.call("POST", "/timeouts", script=120_000)
        try:
            yield window
        finally:
            window.call("DELETE", "")
    finally:
        process.terminate()
        process.wait(60)
        if process.stdout is not None:
            process.stdout.close()

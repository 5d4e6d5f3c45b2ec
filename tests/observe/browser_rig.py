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

    def _tell(self, command: str, **params: object) -> Any:
        return self.call("POST", "/goog/cdp/execute", cmd=command, params=params)

    def look(self, width: int, *, dark: bool = False) -> None:
        """Show pages in a window of this width, in light or dark. Fails on a wider page."""
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self._tell("Emulation.setEmulatedMedia", features=scheme)
        self._tell("Emulation.setScrollbarsHidden", hidden=True)
        self._tell("Emulation.setDeviceMetricsOverride", **size)
        wide = self.run("return document.documentElement.scrollWidth")
        assert wide <= width, f"the page is {wide} pixels wide"

    def screenshot(self, path: Path) -> None:
        """Save a picture of the whole page."""
        width, height = self.run("return [innerWidth, document.body.offsetHeight]")
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        found = self._tell("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(found["data"]))


@contextlib.contextmanager
def browser(folder: Path) -> Iterator[Browser]:
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
        flags = [*FLAGS, "--window-size=1200,900", f"--user-data-dir={folder}/browser"]
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

"""Drives headless Chromium through its DevTools protocol over a pair of pipes; no other package is needed.

Source: https://chromedevtools.github.io/devtools-protocol/ and --remote-debugging-pipe, where each message is JSON
that ends with a zero byte, read from descriptor 3 and written to 4.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
_SECONDS = 60.0
_ARGUMENTS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
    "--remote-debugging-pipe",
)  # fmt: skip


def program() -> str | None:
    """Return the installed browser, None without one."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Page:
    """One tab, and what it wrote to its console."""

    def __init__(self, read: int, write: int) -> None:
        self._read, self._write, self._rest, self._number = read, write, b"", 0
        self.console: list[str] = []
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the page and return its result."""
        return self._call(method, sessionId=self._session, **parameters)

    def open(self, path: Path) -> None:
        """Load a file."""
        self.console.clear()
        self.call("Page.navigate", url=path.resolve().as_uri())
        self._until(lambda message: message.get("method") == "Page.loadEventFired")

    def look(self, width: int, *, dark: bool, media: str = "") -> None:
        """Show the page at a width, in light or dark colours, on the screen or as printed (media="print")."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media=media, features=[scheme])
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)

    def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression; a promise is awaited."""
        answer = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def screenshot(self, path: Path, top: int = 0, height: int | None = None, scale: float = 1) -> None:
        """Write a picture of the page from `top` on, to its end unless a height is given."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": top, "width": size["width"], "height": height or size["height"] - top, "scale": scale}
        picture = self.call("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(picture["data"]))

    def _call(self, method: str, sessionId: str | None = None, **parameters: Any) -> dict[str, Any]:  # noqa: N803
        self._number += 1
        number = self._number
        message = {"id": number, "method": method, "params": parameters}
        text = json.dumps(message | ({"sessionId": sessionId} if sessionId else {})).encode() + b"\0"
        while text:
            text = text[os.write(self._write, text) :]
        answer = self._until(lambda message: message.get("id") == number)
        assert "error" not in answer, answer
        found: dict[str, Any] = answer["result"]
        return found

    def _until(self, wanted: Any) -> dict[str, Any]:
        deadline = time.monotonic() + _SECONDS
        while True:
            message = self._next(deadline)
            self._note(message)
            if wanted(message):
                return message

    def _next(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._read], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, "chromium does not answer"
            piece = os.read(self._read, 1 << 20)
            assert piece, "chromium has ended"
            self._rest += piece
        text, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        return message

    def _note(self, message: dict[str, Any]) -> None:
        """Remember messages on the console, errors of scripts, and violations of the page's policy."""
        if message.get("method") in {"Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"}:
            self.console.append(json.dumps(message["params"]))


@contextmanager
def chromium(folder: Path) -> Iterator[Page]:
    """Start the browser with a new profile in a folder, and end it."""
    (to_read, to_write), (from_read, from_write) = os.pipe(), os.pipe()
    found = program()
    assert found is not None

    def descriptors() -> None:
        # Above 4 first, so that neither overwrites the other.
        read, write = os.dup2(to_read, 60), os.dup2(from_write, 61)
        os.dup2(read, 3)
        os.dup2(write, 4)

    process = subprocess.Popen(
        [found, *_ARGUMENTS, f"--user-data-dir={folder}"],
        preexec_fn=descriptors,  # noqa: PLW1509 the only way to pass descriptors 3 and 4
        close_fds=False, start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    os.close(to_read)
    os.close(from_write)
    try:
        yield Page(from_read, to_write)
    finally:
        os.close(to_write)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait()
        os.close(from_read)

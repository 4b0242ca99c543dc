"""Chromium without a window, told what to do over a pipe: opens pages, notes what they ask for, and takes pictures."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from select import select
from typing import Any, Literal

NAMES = ("chromium", "chromium-browser", "google-chrome")
SECONDS = 120.0
"""Time for a single answer, on a machine that others use too."""

Scheme = Literal["light", "dark"]
_FLAGS = ("--headless=new", "--disable-gpu", "--hide-scrollbars", "--no-first-run", "--disable-dev-shm-usage")
_QUIET = ("--disable-background-networking", "--disable-component-update", "--host-resolver-rules=MAP * ~NOTFOUND")
_END = b"\0"


def find_chromium() -> str | None:
    """Return the program, None where there is none."""
    return next((found for found in map(shutil.which, NAMES) if found), None)


@contextmanager
def chromium(program: str) -> Iterator[Chromium]:
    """Start a browser with a profile of its own that no host name leads anywhere for; it ends with the block.

    Raises:
        RuntimeError: it does not answer.
    """
    read, told = os.pipe()
    answered, write = os.pipe()
    pipes = f'exec "$0" "$@" 3</proc/self/fd/{read} 4>/proc/self/fd/{write}'  # where it expects them
    sandbox = ("--no-sandbox",) if os.geteuid() == 0 else ()  # it has none for root
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        words = [program, *_FLAGS, *_QUIET, *sandbox, f"--user-data-dir={profile}", "--remote-debugging-pipe"]
        nowhere = subprocess.DEVNULL
        process = subprocess.Popen(
            ["/bin/sh", "-c", pipes, *words], pass_fds=(read, write), stdin=nowhere, stdout=nowhere, stderr=nowhere
        )
        os.close(read)
        os.close(write)
        browser = Chromium(told, answered)
        try:
            yield browser
        finally:
            os.close(told)  # which ends it
            os.close(answered)
            try:
                process.wait(SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


class Chromium:
    """A running browser: `told` and `answered` are the ends of its pipes."""

    def __init__(self, told: int, answered: int) -> None:
        self._told, self._answered = told, answered
        self._rest = b""
        self._number = 0

    def open(self, page: Path, width: int, height: int = 900, scheme: Scheme = "light") -> Tab:
        """Open a file in a tab of that size, and return it once it is loaded.

        Raises:
            RuntimeError: the browser does not answer.
        """
        target = self.call("Target.createTarget", {"url": "about:blank"})["targetId"]
        session = self.call("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        tab = Tab(self, session, page.resolve().as_uri())
        for domain in ("Page", "Runtime", "Log", "Network"):
            tab.call(f"{domain}.enable")
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        tab.call("Emulation.setDeviceMetricsOverride", size)
        tab.call("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]})
        tab.call("Page.navigate", {"url": tab.address})
        while not any(event["method"] == "Page.loadEventFired" for event in tab.events):
            tab.take(self.receive())
        return tab

    def call(self, method: str, parameters: dict[str, Any] | None = None, tab: Tab | None = None) -> dict[str, Any]:
        """Return what a method of the DevTools protocol answers; events of `tab` that come before go to it.

        Raises:
            RuntimeError: the browser refuses, or does not answer.
        """
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters or {}}
        if tab is not None:
            message["sessionId"] = tab.session
        self._send(json.dumps(message).encode() + _END)
        while True:
            answer = self.receive()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                result: dict[str, Any] = answer["result"]
                return result
            if tab is not None:
                tab.take(answer)

    def receive(self) -> dict[str, Any]:
        """Return the next message; RuntimeError where none comes."""
        end = time.monotonic() + SECONDS
        while _END not in self._rest:
            ready, _, _ = select([self._answered], [], [], max(0.0, end - time.monotonic()))
            part = os.read(self._answered, 2**20) if ready else b""
            if not part:
                raise RuntimeError("the browser does not answer")
            self._rest += part
        first, _, self._rest = self._rest.partition(_END)
        message: dict[str, Any] = json.loads(first)
        return message

    def _send(self, content: bytes) -> None:
        while content:
            content = content[os.write(self._told, content) :]


@dataclass
class Tab:
    """A page in a browser.

    Attributes:
        browser: it is in.
        session: of the DevTools protocol.
        address: of the page.
        events: what the page has done, as the DevTools protocol tells it.
    """

    browser: Chromium
    session: str
    address: str
    events: list[dict[str, Any]] = field(default_factory=list)

    def take(self, message: dict[str, Any]) -> None:
        """Keep a message that is an event of this page."""
        if message.get("sessionId") == self.session and "method" in message:
            self.events.append(message)

    def call(self, method: str, parameters: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return what a method answers for this page; errors are those of `Chromium.call`."""
        return self.browser.call(method, parameters, self)

    def evaluate(self, script: str) -> Any:
        """Return the value of a script, or of what it promises, as plain JSON values.

        Raises:
            RuntimeError: the script fails.
        """
        options = {"expression": script, "awaitPromise": True, "returnByValue": True}
        found = self.call("Runtime.evaluate", options)
        if "exceptionDetails" in found:
            raise RuntimeError(f"the script fails: {found['exceptionDetails']}")
        return found["result"].get("value")

    @property
    def errors(self) -> list[str]:
        """What the console has shown as an error, and exceptions that nobody caught."""
        found = []
        for event in self.events:
            told = event["params"]
            if event["method"] == "Runtime.exceptionThrown":
                found.append(str(told["exceptionDetails"].get("text")))
            elif event["method"] == "Log.entryAdded" and told["entry"]["level"] == "error":
                found.append(str(told["entry"]["text"]))
            elif event["method"] == "Runtime.consoleAPICalled" and told["type"] in ("error", "assert"):
                found.append(str([one.get("value") for one in told["args"]]))
        return found

    @property
    def requests(self) -> list[str]:
        """The addresses that the page has asked for, itself aside."""
        asked = (event["params"] for event in self.events if event["method"] == "Network.requestWillBeSent")
        return [one["request"]["url"] for one in asked if one["request"]["url"] != self.address]

    def picture(self, height: int) -> bytes:
        """Return the page down to that height as a PNG."""
        width = self.evaluate("innerWidth")
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        options = {"format": "png", "clip": clip, "captureBeyondViewport": True}
        return base64.b64decode(self.call("Page.captureScreenshot", options)["data"])

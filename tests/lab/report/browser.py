"""A real headless Chromium, spoken to over a pair of pipes: no port, no driver, no further package."""

import base64
import io
import json
import os
import shutil
import subprocess
from collections import deque
from pathlib import Path

import pytest
from matplotlib.image import imread

NAMES = ("chromium", "chromium-browser", "google-chrome")


def find_chromium():
    """Return the path of Chromium; without one, skip the test, or fail it where CI is "true"."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        missing = f"This test opens a page in Chromium, and none of {', '.join(NAMES)} is installed. "
        missing += "Install it: sh scripts/ensure_chromium"
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(missing)
    return found


class ChromiumEndedError(Exception):
    """Chromium ended while it was still asked for something."""


class Browser:
    """One page of a browser; everything that it loads, prints or trips over is kept in ``events``."""

    def __init__(self, profile: Path):
        chromium = find_chromium()
        ours, theirs_out = os.pipe()
        theirs_in, self._to = os.pipe()
        self._from = os.fdopen(ours, "rb")
        self._process = None
        self._number = 0
        self._session = None
        self.events = deque()
        try:
            try:
                # Chromium reads from its descriptor 3 and writes to 4.
                self._process = subprocess.Popen(
                    ["bash", "-c", f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}', "bash", chromium,
                     "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
                     "--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank"],
                    pass_fds=(theirs_in, theirs_out),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )  # fmt: skip
            finally:
                os.close(theirs_in)
                os.close(theirs_out)
            target = self.call("Target.createTarget", url="about:blank")["targetId"]
            self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            for domain in ("Page", "Runtime", "Log", "Network"):
                self.call(f"{domain}.enable")
        except BaseException:
            self._end()
            raise

    def call(self, method, **arguments):
        """Do something in the browser and return its answer."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": arguments}
        if self._session:
            message["sessionId"] = self._session
        try:
            os.write(self._to, json.dumps(message).encode() + b"\0")
        except BrokenPipeError as error:
            raise ChromiumEndedError from error
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer["error"]
                return answer["result"]
            self.events.append(answer)

    def open(self, path: Path, *, width, height=900, dark=False):
        """Show a file in a window of some size, and wait until it is all there."""
        self.events.clear()
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1,
                  mobile=width < 600)  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=path.as_uri())
        while not self.happened("Page.loadEventFired"):
            self.events.append(self._read())

    def happened(self, method):
        """Return what events of one kind there were since the page was opened."""
        return [event["params"] for event in self.events if event["method"] == method]

    def evaluate(self, expression):
        """Return the value of a JavaScript expression in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def click(self, selector):
        """Click into the middle of the first element that a selector names."""
        box = self.evaluate(
            f"(() => {{ const e = document.querySelector({selector!r}); e.scrollIntoView({{block: 'center'}});"
            " const b = e.getBoundingClientRect(); return {x: b.x + b.width / 2, y: b.y + b.height / 2}; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **box)

    def pixels(self, *, x, y, width, height):
        """Return the colours from 0 to 255 of a part of the page, as rows of pixels."""
        clip = {"x": x, "y": y, "width": width, "height": height, "scale": 1}
        image = self.call("Page.captureScreenshot", format="png", clip=clip)["data"]
        return (imread(io.BytesIO(base64.b64decode(image)))[..., :3] * 255).round()

    def press_enter(self):
        """Press the return key where the focus is."""
        key = {"key": "Enter", "windowsVirtualKeyCode": 13}
        self.call("Input.dispatchKeyEvent", type="keyDown", text="\r", **key)
        self.call("Input.dispatchKeyEvent", type="keyUp", **key)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._session = None
        try:
            self.call("Browser.close")
        finally:
            self._end()

    def _end(self):
        """Close the pipes, without which Chromium ends by itself, and wait until it has."""
        os.close(self._to)
        self._from.close()
        if self._process is not None:
            self._process.wait()

    def _read(self):
        message = bytearray()
        while (byte := self._from.read(1)) != b"\0":
            if not byte:
                raise ChromiumEndedError
            message += byte
        return json.loads(message)

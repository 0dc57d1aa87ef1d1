"""A pipeline while three pages are open in browsers, beside the same one without viewers."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.apart import apart
from bench.engine_run import measured_run
from bench.in_turns import compared, shown
from bench.workload import BALANCES, PAYMENTS, KeepBalance, payments_file
from millwheel import Discard, Pipeline
from millwheel.services.endpoint import Endpoint

SCHEMA = "bench_watched"
PAGES = ("", f"pipelines/{SCHEMA}", f"pipelines/{SCHEMA}/late")
LOOK_SECONDS = 1.0
"""As often as the script of a page asks."""
START_SECONDS = 60.0


class Viewer(threading.Thread):
    """An open page: asks for it each second, and says which version it has."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self._url = url
        self._ended = threading.Event()
        self.looks = 0

    def run(self) -> None:
        tag = ""
        while not self._ended.wait(LOOK_SECONDS):
            request = urllib.request.Request(self._url, headers={"If-None-Match": tag})
            with (
                contextlib.suppress(urllib.error.HTTPError),  # 304 is one
                urllib.request.urlopen(request) as answer,
            ):
                answer.read()
                tag = answer.headers["ETag"]
            self.looks += 1

    def end(self) -> int:
        """Return how often it has looked."""
        self._ended.set()
        self.join()
        return self.looks


@contextlib.contextmanager
def open_pages(url: str) -> Iterator[list[Viewer]]:
    """Serve the pages of a store in a process of their own, and keep three of them open."""
    with Endpoint().listen("--http", 1) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = [sys.executable, "-m", "millwheel", "--store", url, "ui", "--http", address]
    with subprocess.Popen([*command, "--stop-with-stdin"], stdin=subprocess.PIPE) as served:
        try:
            _wait_for(f"http://{address}/healthz")
            viewers = [Viewer(f"http://{address}/{page}") for page in PAGES]
            for viewer in viewers:
                viewer.start()
            yield viewers
            print("looks:", *(viewer.end() for viewer in viewers))
        finally:
            assert served.stdin is not None
            served.stdin.close()


def _wait_for(url: str) -> None:
    waited = threading.Event()
    for _ in range(int(START_SECONDS / 0.1)):
        with contextlib.suppress(OSError), urllib.request.urlopen(url):
            return
        waited.wait(0.1)
    raise TimeoutError(url)


async def rate(url: str, directory: Path, records: int) -> Any:
    """Measure one run."""
    pipeline = Pipeline(SCHEMA)
    pipeline.inject(
        PAYMENTS, payments_file(directory, records), timestamp=lambda payment: payment.at
    )
    pipeline.add(KeepBalance(), PAYMENTS.by(lambda payment: payment.account))
    pipeline.sink(BALANCES, Discard())
    return await measured_run(url, pipeline, records)


async def measure(url: str, directory: Path, *, pairs: int, records: int) -> dict[str, Any]:
    """Measure both in turns. The viewers run in this process, the engine in another one."""
    both = []
    for _ in range(pairs):
        with open_pages(url):
            watched = await apart(rate, url, directory, records)
        both.append((watched, await apart(rate, url, directory, records)))
    found = compared(both)
    print(shown("three pages are open", found, "with none"))
    return found

"""Pictures of the pages of `millwheel ui`, made each time when the site is built.

A pipeline (`pictured_shop`) runs on an embedded store, and a headless Chromium looks at its pages.
Without a Chromium the site is built without the pictures.

::

    ```{page-picture} late
    :alt: words for those who do not see it
    ```
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

HERE = Path(__file__).parent
PICTURED = "pictured_shop"
ORDERS = 3000
MADE = Path("pictures") / "made"
PAGES = {
    "steps": "pipelines/shop",
    "late": "pipelines/shop/late?step=sales_by_minute",
    "letters": "pipelines/shop/letters",
}
"""The path of each page that has a picture."""
WIDTH, HEIGHT = 1280, 900
SECONDS = 120.0

log = logging.getLogger(__name__)


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("page-picture", PagePicture)
    app.connect("builder-inited", _make)
    return {"parallel_read_safe": True}


class PagePicture(SphinxDirective):
    """A picture of a page, or a sentence in its place."""

    required_arguments = 1
    option_spec: ClassVar[dict[str, Any]] = {"alt": directives.unchanged_required}

    def run(self) -> list[nodes.Node]:
        path = MADE / f"{self.arguments[0]}.png"
        if (Path(self.env.srcdir) / path).is_file():
            return [nodes.image(uri=f"/{path.as_posix()}", alt=self.options["alt"])]
        text = "(The site was built on a machine without a Chromium: the picture is left out.)"
        return [nodes.paragraph(text, text)]


def _make(app: Sphinx) -> None:
    if app.builder.format != "html":
        return
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    folder = Path(app.srcdir) / MADE
    shutil.rmtree(folder, ignore_errors=True)
    if browser is None:
        log.info("pictures of pages are left out: there is no chromium")
        return
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as directory, _shown_shop(Path(directory)) as url:
        for name, path in PAGES.items():
            _photograph(browser, f"{url}/{path}", folder / f"{name}.png")


@contextmanager
def _shown_shop(directory: Path) -> Iterator[str]:
    """Run the pipeline and serve its pages during the block; gives their URL."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join((str(HERE.parents[1]), str(HERE))),
        "PICTURED_ORDERS": str(directory / "orders.jsonl"),
        "MILLWHEEL_STORE": str(directory / "store"),
    }
    write = f"import {PICTURED}; {PICTURED}.write_orders({ORDERS})"
    subprocess.run([sys.executable, "-c", write], env=environment, check=True)  # noqa: S603
    run = _started(environment, directory, "run", f"{PICTURED}:pipeline", "--keep-open")
    try:
        _read_until(run, lambda line: line.get("processed", 0) >= ORDERS)
        serve = _started(environment, directory, "ui", "--mend", "--http", "127.0.0.1:0")
        try:
            url = str(_read_until(serve, lambda line: line.get("event") == "ui_listening")["url"])
            _wait_for_rates(url)
            yield url
        finally:
            _end(serve)
    finally:
        _end(run)


def _started(environment: dict[str, str], directory: Path, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "millwheel", *words, "--log-format", "json"]
    return subprocess.Popen(  # noqa: S603
        command, cwd=directory, env=environment, stdout=subprocess.DEVNULL, text=True,
        stderr=subprocess.PIPE,
    )  # fmt: skip


def _end(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=SECONDS)


def _read_until(process: subprocess.Popen[str], wanted: Any) -> dict[str, Any]:
    """Read the log up to a line."""
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("{") and wanted(found := json.loads(line)):
            return dict(found)
    raise RuntimeError(f"{process.args} ended with {process.wait()}")


def _wait_for_rates(url: str) -> None:
    """Wait until the owners have said how fast they are, in a heartbeat."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        with urllib.request.urlopen(f"{url}/api/pipelines/shop") as answer:  # noqa: S310
            steps = json.load(answer)["computations"]
        if all(step["per_second"] is not None for step in steps):
            return
        time.sleep(0.5)
    raise TimeoutError(url)


def _photograph(browser: str, url: str, path: Path) -> None:
    subprocess.run(  # noqa: S603
        [
            browser, "--headless", "--no-sandbox", "--hide-scrollbars",
            f"--window-size={WIDTH},{HEIGHT}", f"--screenshot={path}", url,
        ],
        check=True, capture_output=True, timeout=SECONDS,
    )  # fmt: skip

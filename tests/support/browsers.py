"""Chromium without a window, as a viewer's browser."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver import ActionChains, Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.keys import Keys

PROGRAMS = Path("/usr/bin/chromium"), Path("/usr/bin/chromedriver")
"""Where Debian has them: selenium must not fetch others."""

PLAIN_HOST = "pages.test"
"""Leads here. The browser does not know that, and trusts plain HTTP from there as little as from
any host."""

SECONDS = 20.0
"""Longest wait for a page, on a machine that is busy with other tests."""


MOST_STOPS = 300


def required_programs() -> None:
    """Skip the test on a machine without Chromium; fail it where all checks must run."""
    missing = [str(each) for each in PROGRAMS if not each.exists()]
    if missing:
        text = f"a browser is missing on this machine: {', '.join(missing)}"
        assert os.environ.get("CI") != "true", text
        pytest.skip(text)


class Browser:
    """One window. Its size and its theme are set by `open`."""

    def __init__(self) -> None:
        required_programs()
        options = ChromeOptions()
        options.binary_location = str(PROGRAMS[0])
        for argument in (
            "--headless=new",
            "--no-sandbox",  # of no use in a container, and not to be had for root
            "--disable-dev-shm-usage",
            "--disable-gpu",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            f"--host-resolver-rules=MAP {PLAIN_HOST} 127.0.0.1",
        ):
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = Chrome(options, Service(str(PROGRAMS[1])))
        self.driver.set_page_load_timeout(SECONDS)
        self._axe = (resources.files("axe_core_python") / "axe.min.js").read_text("utf-8")

    def open(self, url: str, *, width: int = 1_600, dark: bool = False) -> None:
        """Load a page anew, and forget what earlier ones have complained of."""
        self.driver.get("about:blank")
        self.complaints()
        self.resize(width, dark=dark)
        self.driver.get(url)

    def resize(self, width: int, *, dark: bool = False) -> None:
        self.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False},
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        still = {"name": "prefers-reduced-motion", "value": "reduce"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme, still]})

    def hide(self) -> None:
        """Put the window away, as a tab behind another one is."""
        self.driver.minimize_window()
        self.until(lambda: self.run("return document.hidden"), "the page is hidden")

    def show(self) -> None:
        window = self.driver.execute_cdp_cmd("Browser.getWindowForTarget", {})["windowId"]
        bounds = {"windowId": window, "bounds": {"windowState": "normal"}}
        self.driver.execute_cdp_cmd("Browser.setWindowBounds", bounds)
        self.until(lambda: not self.run("return document.hidden"), "the page is shown")

    def stand_still(self) -> None:
        """Look at the store no more, so that elements keep their places."""
        self.run("document.querySelector('main').removeAttribute('data-live')")

    def complaints(self) -> list[str]:
        """What the console says since it was asked: errors, requests that failed, violations of the
        policy."""
        entries: Any = self.driver.execute("getLog", {"type": "browser"})["value"]
        return [f"{entry['level']}: {entry['message']}" for entry in entries]

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def text(self, selector: str = "main") -> str:
        return str(
            self.run(
                "const found = document.querySelector(arguments[0]);"
                "return found ? found.textContent.replace(/\\s+/g, ' ').trim() : ''",
                selector,
            )
        )

    def column(self, name: str) -> list[str]:
        """Texts of a column, from its table's first row on."""
        return [str(text) for text in self.run(COLUMN, name)]

    def fetched_statuses(self) -> list[int]:
        """Of the answers that the page's script has got."""
        return [
            int(status)
            for status in self.run(
                "return performance.getEntriesByType('resource')"
                ".filter((one) => one.initiatorType === 'fetch').map((one) => one.responseStatus)"
            )
        ]

    def overflow(self) -> int:
        """Pixels by which the page is wider than the window."""
        return int(
            self.run(
                "const all = document.documentElement;"
                "return Math.max(all.scrollWidth, document.body.scrollWidth) - all.clientWidth"
            )
        )

    def barriers(self) -> list[str]:
        """Rules of accessibility that the page breaks, with the elements; serious ones only."""
        self.driver.execute_script(self._axe)
        found = self.driver.execute_async_script(
            "const done = arguments[arguments.length - 1];"
            "axe.run(document, {resultTypes: ['violations']}).then((found) => done("
            "found.violations.filter((one) => ['serious', 'critical'].includes(one.impact))"
            ".map((one) => one.id + ': ' + one.help + ': ' + one.nodes.slice(0, 3).map("
            "(node) => node.html.slice(0, 200) + ' ' + node.failureSummary).join(' | '))))"
        )
        return [str(one) for one in found]

    def press(self, *keys: str) -> None:
        ActionChains(self.driver, duration=0).send_keys(*keys).perform()

    def tab_to(self, name: str) -> None:
        """Press Tab until an element with this text or label has the focus."""
        for _ in range(MOST_STOPS):
            self.press(Keys.TAB)
            if self.run(FOCUSED) == name:
                return
        raise AssertionError(f"Tab does not lead to {name!r}: {self.text('body')[:2_000]}")

    def tab_stops(self) -> list[dict[str, Any]]:
        """What Tab leads to, from the beginning of the page until it leaves it: the element's
        number in the document, its name, whether a mark can be seen around it, and whether it is in
        the window then."""
        self.run("document.activeElement.blur(); window.scrollTo(0, 0)")
        stops: list[dict[str, Any]] = []
        seen: set[int] = set()
        while True:
            self.press(Keys.TAB)
            stop = self.run(STOP)
            if stop is None or stop["at"] in seen:
                return stops
            seen.add(stop["at"])
            stops.append(stop)

    def reachable(self) -> list[int]:
        """Numbers in the document of the elements that a mouse can use."""
        found: list[int] = self.run(REACHABLE)
        return found

    def until(self, holds: Callable[[], Any], what: str) -> Any:
        """Wait for the page; gives the first result that is true."""
        deadline = time.monotonic() + SECONDS
        while True:
            found = holds()
            if found:
                return found
            assert time.monotonic() < deadline, f"{what}; the page: {self.text('body')[:2_000]}"
            time.sleep(0.05)

    def until_text(self, text: str, selector: str = "main") -> None:
        self.until(lambda: text in self.text(selector), f"{selector} never says {text!r}")

    def close(self) -> None:
        self.driver.quit()


STOP = """
const one = document.activeElement;
if (one === null || one === document.body || one === document.documentElement) return null;
const style = getComputedStyle(one);
const box = one.getBoundingClientRect();
const isWide = (width) => parseFloat(width) >= 2;
const outlined = style.outlineStyle !== 'none' && isWide(style.outlineWidth);
const strokes = () => [...one.querySelectorAll('*')].map((part) => getComputedStyle(part))
  .map((inside) => inside.stroke + ' ' + inside.strokeWidth).join();
let drawn = false;
if (one instanceof SVGElement) {
  const now = strokes();
  one.blur();
  drawn = strokes() !== now;
  one.focus({ focusVisible: true });
}
return {
  at: [...document.querySelectorAll('*')].indexOf(one),
  tag: one.tagName.toLowerCase(),
  name: (one.textContent || one.name || one.getAttribute('aria-label') || '').trim().slice(0, 60),
  marked: outlined || drawn,
  inside: box.width > 0 && box.height > 0 && box.bottom > 0 && box.top < innerHeight
    && box.right > 0 && box.left < innerWidth,
};
"""

REACHABLE = """
const all = [...document.querySelectorAll('*')];
const usable = 'a[href], button:not(:disabled), input:not([type=hidden]):not(:disabled), textarea, '
  + 'select, summary, [tabindex="0"]';
const seen = (one) => one.checkVisibility({ visibilityProperty: true });
return all.filter((one) => one.matches(usable) && seen(one)).map((one) => all.indexOf(one));
"""

FOCUSED = """
const one = document.activeElement;
const label = one.labels && one.labels[0] ? one.labels[0] : one;
return label.textContent.trim();
"""

COLUMN = """
for (const head of document.querySelectorAll('thead th')) {
  if (head.textContent.trim() !== arguments[0]) continue;
  const rows = [...head.closest('table').querySelectorAll('tbody tr')];
  return rows.map((row) => row.children[head.cellIndex].textContent.replace(/\\s+/g, ' ').trim());
}
return [];
"""

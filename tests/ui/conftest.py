"""The pages of a store, and a browser to see them."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.browsed_store import BrowsedStore, hostile_store
from tests.support.browsers import Browser
from tests.support.seen_pages import SeenPages
from tests.support.servers import database, quick_directory


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A browser is opened by `make pages-check` only."""
    for item in items:
        if "browser" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.pages)


@pytest.fixture
def pages_of() -> Iterator[Callable[..., SeenPages]]:
    """Makes `SeenPages`, and closes them."""
    made: list[SeenPages] = []

    def make(url: str, *args: object, **options: object) -> SeenPages:
        made.append(SeenPages(url, *args, **options))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture(scope="session")
def shop(postgres_url: Callable[[int], str]) -> Iterator[BrowsedStore]:
    """A store with a paused pipeline that has all that the pages show, of hostile texts."""
    directory = Path(tempfile.mkdtemp(prefix="millwheel-shop-", dir=quick_directory()))
    with database(postgres_url(18)) as url:
        found = hostile_store(url, directory)
        yield found
        found.close()
    shutil.rmtree(directory)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Chromium; the test is skipped on a machine without it."""
    found = Browser()
    yield found
    found.close()

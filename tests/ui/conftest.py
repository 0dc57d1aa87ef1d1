from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.support.seen_pages import SeenPages


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

"""The pages of the reference are those that the code makes."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from millwheel import errors
from millwheel.store.console.migrate import migrate
from tests.docs.reference.exit_codes_page import MEANINGS, classes
from tests.docs.reference.pages import FOLDER, VIEWS, pages
from tests.docs.reference.views_page import views_page
from tests.support.store_sites import Schema

AGAIN = "run python -m tests.docs.reference"


@pytest.mark.parametrize(
    ("path", "text"), [pytest.param(*each, id=each[0].name) for each in pages()]
)
def test_a_page_is_made_from_the_code(path: Path, text: str) -> None:
    assert path.is_file(), AGAIN
    assert path.read_text("utf-8") == text, AGAIN


@pytest.mark.newest
def test_the_page_of_views_is_made_from_their_comments(schema: Schema) -> None:
    migrate(schema.url, schema.name)
    with psycopg.connect(schema.url) as connection:
        text = views_page(connection, schema.name)
    assert VIEWS.read_text("utf-8") == text, AGAIN


def test_each_page_of_the_api_is_of_a_public_module() -> None:
    made = {path.name for path, _ in pages() if path.parent.name == "api"}
    assert {path.name for path in (FOLDER / "api").glob("*.md")} == made


def test_each_exit_code_has_a_meaning() -> None:
    codes = {each.exit_code for each in classes()} - {errors.MillwheelError.exit_code}
    assert codes <= MEANINGS.keys()
    assert MEANINGS.keys() - codes <= {0, 1, 130, 143}

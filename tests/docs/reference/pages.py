"""All pages of the reference that are made from code."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tests.docs.reference.api_pages import api_pages
from tests.docs.reference.commands_page import commands_page
from tests.docs.reference.exit_codes_page import errors_page, exit_codes_page
from tests.docs.reference.figures_page import figures_page
from tests.docs.reference.limits_page import limits_page
from tests.docs.reference.metrics_page import metrics_page
from tests.docs.reference.settings_page import settings_page

FOLDER = Path(__file__).parents[3] / "docs" / "reference"
VIEWS = FOLDER / "views.md"


def pages() -> Iterator[tuple[Path, str]]:
    """Path and text of each page that needs no database."""
    yield FOLDER / "commands.md", commands_page()
    yield FOLDER / "settings.md", settings_page()
    yield FOLDER / "metrics.md", metrics_page()
    yield FOLDER / "exit-codes.md", exit_codes_page()
    yield FOLDER / "errors.md", errors_page()
    yield FOLDER / "limits.md", limits_page()
    yield FOLDER / "page-figures.md", figures_page()
    for name, text in api_pages():
        yield FOLDER / name, text

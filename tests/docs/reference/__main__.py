"""Writes the pages: ``python -m tests.docs.reference``."""

from __future__ import annotations

import tempfile
from pathlib import Path

import psycopg

from millwheel.store.address import StoreAddress
from millwheel.store.console.migrate import migrate
from millwheel.store.console.presence import present
from tests.docs.reference.pages import VIEWS, pages
from tests.docs.reference.views_page import views_page

SCHEMA = "reference"


def main() -> None:
    for path, text in pages():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, "utf-8")
    with (
        tempfile.TemporaryDirectory() as directory,
        present(StoreAddress.parse(str(Path(directory) / "store")), create=True) as presence,
    ):
        migrate(presence.url, SCHEMA)
        with psycopg.connect(presence.url) as connection:
            VIEWS.write_text(views_page(connection, SCHEMA), "utf-8")


if __name__ == "__main__":
    main()

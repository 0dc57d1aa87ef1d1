"""The pages, in the order of the navigation; a further one is a row here."""

from __future__ import annotations

from typing import Any

from millwheel.ui.page import Page
from millwheel.ui.pages.disk_page import DISK
from millwheel.ui.pages.key_page import KEY
from millwheel.ui.pages.late_page import LATE
from millwheel.ui.pages.letters_page import LETTERS
from millwheel.ui.pages.operator_log import LOG
from millwheel.ui.pages.overview import OVERVIEW
from millwheel.ui.pages.sql_page import SQL
from millwheel.ui.pages.steps_page import STEPS
from millwheel.ui.pages.timers_ahead import TIMERS
from millwheel.ui.pages.workers_page import WORKERS

PAGES: dict[str, Page[Any]] = {
    page.name: page for page in (STEPS, LATE, KEY, LETTERS, WORKERS, TIMERS, DISK, LOG, SQL)
}

__all__ = ["OVERVIEW", "PAGES"]

"""docs/reference/settings.md, from `Settings`."""

from __future__ import annotations

from dataclasses import fields

from millwheel.settings import Range, Settings
from tests.docs.reference.markdown import code, page, prose, table

HEAD = """
Limits and periods of a worker: `Pipeline("shop", settings=Settings(lease_seconds=10))`. Sizes are
in bytes, times in seconds. A value outside of its range is refused when the pipeline is made.
Workers of one pipeline may have different settings, except where the text says that a setting is
part of the deployed graph.
"""


def settings_page() -> str:
    rows = []
    for each in fields(Settings):
        limits: Range = each.metadata["range"]
        between = f"{_number(limits.least)} to {_number(limits.most)}"
        rows.append((code(each.name), limits.text, _number(each.default), between))
    return page("Settings", prose(HEAD), table(["setting", "meaning", "default", "range"], rows))


def _number(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,.10g}" if isinstance(value, float) else f"{value:,}"

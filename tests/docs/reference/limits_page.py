"""docs/reference/limits.md, from the constants that the engine checks."""

from __future__ import annotations

from millwheel import bundles, context, state, windows
from millwheel.core import addresses, codec, extractors, json_rows, model, names
from millwheel.files import file_sources
from millwheel.ingest import request_reading
from millwheel.spark import java, relation, snapshots
from millwheel.store.embedded import binaries
from tests.docs.reference.markdown import page, prose, table

HEAD = """
Limits that no setting changes. Those that can be changed are [settings](settings.md).
"""


def limits_page() -> str:
    rows = [
        ("Length of the name of a pipeline, computation or stream", letters(names.MOST_LETTERS)),
        ("Size of a key as JSON", size(codec.MAX_KEY_BYTES)),
        ("Size of a timer's tag", size(context.MAX_TAG_BYTES)),
        ("Length of a user counter's name", letters(context.MAX_COUNTER_NAME)),
        ("Value of a user counter", f"{context.MAX_COUNT:,}"),
        ("Name of a `MapState` or `ListState` field", size(state.MAX_FIELD_BYTES)),
        ("Levels of nesting of a JSON row", f"{json_rows.MOST_DEPTH}"),
        ("Size of a row of a file, by default", size(file_sources.MAX_ROW_BYTES)),
        ("Event time, in microseconds", f"{day(model.MIN_TIME)} to {day(model.MAX_TIME)}"),
        ("Length of a window", seconds(windows.LONGEST_SECONDS)),
        ("Records of a numbered bundle", f"{bundles.MOST_RECORDS:,}"),
        ("Time that a numbered bundle stays open", seconds(bundles.MOST_SECONDS)),
        ("Key ranges with a broadcast table each", f"{addresses.MOST_CELLS:,}"),
        ("Levels of functions that a key extractor calls", f"{extractors.MOST_DEPTH}"),
        ("Length of an `Idempotency-Key` over HTTP", letters(request_reading.MOST_ID)),
        ("Time to send the body of a request", seconds(request_reading.BODY_SECONDS)),
        ("Digits of a decimal on Spark", f"{relation.MAX_DIGITS}"),
        ("Time that a snapshot for Spark is held, by default", seconds(snapshots.MOST_SECONDS)),
        ("Oldest Postgres that runs embedded", f"{binaries.MINIMUM_MAJOR}"),
        ("Oldest Java for Spark", f"{java.MINIMUM_VERSION}"),
    ]
    return page("Limits", prose(HEAD), table(["limit", "value"], rows))


def letters(count: int) -> str:
    return f"{count} characters"


def size(count: int) -> str:
    return f"{count:,} bytes"


def seconds(count: float) -> str:
    return f"{count:,.0f} s"


def day(micros: int) -> str:
    return model.from_micros(micros).date().isoformat()

"""millwheel: a per-record persistent stream engine on Postgres, after Google's MillWheel.

Define computations as Python classes, run workers as services, inspect state via SQL.
"""

from typing import TYPE_CHECKING

from millwheel.core.lazy import imported_when_used

if TYPE_CHECKING:
    from millwheel.bundles import BundleId, Bundles
    from millwheel.computation import Computation
    from millwheel.context import Context
    from millwheel.core.model import Key, Record, Timer
    from millwheel.files import Csv, JsonLines
    from millwheel.inbox import Inbox
    from millwheel.parking import Park
    from millwheel.pipeline import Pipeline
    from millwheel.settings import Settings
    from millwheel.sinks import Console, Discard, JsonLinesFiles, Table
    from millwheel.state import ListState, MapState
    from millwheel.streams import Broadcast, Input, Stream

__version__ = "0.1.0"

__all__ = [
    "Broadcast",
    "BundleId",
    "Bundles",
    "Computation",
    "Console",
    "Context",
    "Csv",
    "Discard",
    "Inbox",
    "Input",
    "JsonLines",
    "JsonLinesFiles",
    "Key",
    "ListState",
    "MapState",
    "Park",
    "Pipeline",
    "Record",
    "Settings",
    "Stream",
    "Table",
    "Timer",
]

PUBLIC_MODULES = (
    "aggregates",
    "bundles",
    "client",
    "computation",
    "computations",
    "context",
    "errors",
    "fetching",
    "files",
    "following",
    "inbox",
    "ingest",
    "kafka",
    "parking",
    "pipeline",
    "settings",
    "sinks",
    "sources",
    "spark",
    "state",
    "streams",
    "testing",
    "timers",
    "windows",
)
"""Modules with a stable API: the names in each one's ``__all__``. All others are internal."""

_PLACES = {
    "Broadcast": "streams",
    "BundleId": "bundles",
    "Bundles": "bundles",
    "Computation": "computation",
    "Console": "sinks",
    "Context": "context",
    "Csv": "files",
    "Discard": "sinks",
    "Inbox": "inbox",
    "Input": "streams",
    "JsonLines": "files",
    "JsonLinesFiles": "sinks",
    "Key": "core.model",
    "ListState": "state",
    "MapState": "state",
    "Park": "parking",
    "Pipeline": "pipeline",
    "Record": "core.model",
    "Settings": "settings",
    "Stream": "streams",
    "Table": "sinks",
    "Timer": "core.model",
}

__getattr__ = imported_when_used(__name__, _PLACES)

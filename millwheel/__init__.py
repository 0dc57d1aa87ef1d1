"""millwheel: a per-record persistent stream engine on Postgres, after Google's MillWheel.

Define computations as Python classes, run workers as services, inspect state via SQL.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from millwheel.bundles import BundleId, Bundles
    from millwheel.computation import Computation
    from millwheel.context import Context
    from millwheel.files import Csv, JsonLines
    from millwheel.inbox import Inbox
    from millwheel.model import Key, Record, Timer
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
    "Pipeline",
    "Record",
    "Settings",
    "Stream",
    "Table",
    "Timer",
]

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
    "Key": "model",
    "ListState": "state",
    "MapState": "state",
    "Pipeline": "pipeline",
    "Record": "model",
    "Settings": "settings",
    "Stream": "streams",
    "Table": "sinks",
    "Timer": "model",
}


def __getattr__(name: str) -> Any:
    """Import a name when it is first used, so that a command, or a Python process of Spark, loads only what it needs."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    found = globals()[name] = getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
    return found

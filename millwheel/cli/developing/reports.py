"""The reports of a version of the code to the session that started it: lines of JSON on a pipe."""

from __future__ import annotations

import os
from typing import Any, Literal

import msgspec
from msgspec import Struct

DEPLOY = b"deploy\n"
"""The answer to a `PlannedDeploy` that asks."""


class VersionOptions(Struct, frozen=True):
    """The options of ``millwheel dev`` that a version runs with."""

    target: str
    http: str | None
    ingest: str | None
    ingest_tokens: str | None
    debug: bool
    other_name: str | None = None
    """The name to run the pipeline under; None: its own."""


class Imported(Struct, tag=True, frozen=True):
    """The files of the code, absolute; reported again when there are more."""

    code: list[str]


class Checked(Struct, tag=True, frozen=True):
    """The graph is right, and the store is open."""

    pipeline: str
    inputs: list[str]
    """Files that are read once, to the end."""
    tables: dict[str, bool]
    """Tables of its sinks, and whether a row replaces the one with its key."""
    directories: list[str]
    """Directories of its part files."""


class PlannedDeploy(Struct, tag=True, frozen=True):
    """The changes that the deploy of this code finds."""

    lines: list[str]
    verdict: Literal["fits", "asks", "refused"]


class VersionRunning(Struct, tag=True, frozen=True):
    addresses: list[str]
    """Of figures and of records over HTTP."""


class Delivered(Struct, tag=True, frozen=True):
    """A sink outside the store has taken a record."""

    sink: str
    value: msgspec.Raw


class Finished(Struct, tag=True, frozen=True):
    """All input so far is processed."""

    lines: list[str]


Report = Imported | Checked | PlannedDeploy | VersionRunning | Delivered | Finished

_decoder: msgspec.json.Decoder[Report] = msgspec.json.Decoder(Report)


def decode(line: bytes) -> Report:
    return _decoder.decode(line)


class ReportPipe:
    """The writing end, in the process of a version."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def send(self, report: Report) -> None:
        """Send it at once; it blocks while the session is behind."""
        self._write(msgspec.json.encode(report, enc_hook=str) + b"\n")

    def _write(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._descriptor, data) :]


def as_raw(value: Any) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value, enc_hook=str))

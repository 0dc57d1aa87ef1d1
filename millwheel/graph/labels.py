"""Names of nodes and sinks for display, and names that are made for them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from millwheel.computation import snake_case
from millwheel.sinks import Console, Discard, JsonLinesFiles, SinkUse, Table

INJECTED = "__injected"
"""Suffix of the hidden stream between injectors and the relay that finds duplicate ids."""


def sink_name(use: SinkUse) -> str:
    """The name of a sink in graphs and step names."""
    match use.sink:
        case Table(name=name):
            return str(name)
        case JsonLinesFiles():
            return "files"
        case Console():
            return "console"
        case Discard():
            return "discard"
        case sink:
            return snake_case(type(sink).__name__.removesuffix("Sink")) or "sink"


def free_name(name: str, taken: Collection[str]) -> str:
    """`name`, with a number if another node has it already."""
    number = 2
    free = name
    while free in taken:
        free = f"{name}_{number}"
        number += 1
    return free


def users_stream(name: str) -> str:
    """The stream that a hidden one is made from, or the stream itself."""
    return name.partition("__")[0]


def label_of(name: str, description: Mapping[str, Any]) -> str:
    """A node's name for display, from its name and its description (`Node.describe`).

    A generated name reads as ``flat_map → words`` for ``make_words``, ``sink: spikes`` for
    ``spikes_to_spikes``. Commands, views and the store use the name.
    """
    if description.get("kind") == "relay":
        return _relay_label(name, description)
    stream = name.removeprefix("make_")
    if stream != name and stream in description.get("writes", ()) and "class" in description:
        return f"{snake_case(description['class'])} → {stream}"
    return name


def _relay_label(name: str, description: Mapping[str, Any]) -> str:
    stream = str(description["inputs"][0][0])
    if stream.endswith(INJECTED):
        return f"ids: {stream.removesuffix(INJECTED)}"
    sinks = [sink for uses in description.get("sinks", {}).values() for sink in uses]
    if not sinks:
        generated, label = f"{stream}_relay", f"relay: {stream}"
    else:
        sink = described_sink_name(sinks[0])
        generated = f"{stream}_to_{sink}"
        label = f"sink: {sink}" if sink == stream else f"sink: {stream} → {sink}"
    number = name.removeprefix(generated).removeprefix("_")  # see `free_name`
    return f"{label} ({number})" if number else label


def described_sink_name(description: Mapping[str, Any]) -> str:
    """The name of a sink, by its stored description."""
    return str(
        description.get("table")
        or next(
            (
                name
                for name, part in (
                    ("files", "json_lines"),
                    ("console", "console"),
                    ("discard", "discard"),
                )
                if part in description
            ),
            next(iter(description), "sink"),
        )
    )

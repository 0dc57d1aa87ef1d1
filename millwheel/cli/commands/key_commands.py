"""``millwheel state`` and ``millwheel timers``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import typer

from millwheel.cli.arguments import json_of
from millwheel.cli.command import command, group
from millwheel.cli.key_text import print_key
from millwheel.cli.opened_store import inspecting
from millwheel.cli.operator_desk import actor, asking, report
from millwheel.cli.options import CommonOptions, Json, OnePipeline, OptionGroup, RequestOptions
from millwheel.cli.printing import print_json
from millwheel.core.typed_values import key_of
from millwheel.errors import UsageError
from millwheel.store.console.one_key import KeyPart

app = typer.Typer()
state = group(app, "state")
timers = group(app, "timers")

Condition = Annotated[
    str | None,
    typer.Option(
        "--if", metavar="JSON", help="Only if the state has these fields with these values."),
]  # fmt: skip


@dataclass(frozen=True)
class OneKey(OptionGroup):
    computation: Annotated[str, typer.Argument(help="Name of the computation.")]
    key: Annotated[
        str,
        typer.Argument(
            help="The key as JSON, for example 13 or '[\"JFK\", 4]'; other words are text."
        ),
    ]


@dataclass(frozen=True)
class OneTimer(OneKey):
    tag: Annotated[
        str, typer.Argument(help="The timer's tag. Default: the timer without a tag.")
    ] = ""
    kind: Annotated[Literal["watermark", "wall"], typer.Option(help="Kind of the timer.")] = (
        "watermark"
    )


@command(
    state,
    "get",
    examples=[
        "millwheel state get count_searches cats",
        "millwheel state get count_flights '[\"JFK\", 4]'  # a key of two parts",
    ],
)
def get_state(
    one: OneKey,
    pipeline: OnePipeline = None,
    limit: Annotated[int, typer.Option(min=1, help="Most entries and most timers.")] = 100,
    skip: Annotated[int, typer.Option(min=0, help="Leave out the first ones.")] = 0,
    as_json: Json = False,
    *,
    common: CommonOptions,
) -> None:
    """Show the state, the timers and the pending records of a key."""
    part = KeyPart(limit, skip)
    with inspecting(common) as inspection:
        name = inspection.choose(pipeline)
        found = inspection.key(name, one.computation, key_of(one.key), part)
    if as_json:
        print_json(found)
    else:
        print_key(found, part)


@command(
    state,
    "set",
    examples=[
        "millwheel state set count_searches cats --merge '{\"searches\": 0}'",
        "millwheel state set count_searches cats --value '{}' --if '{\"searches\": 9}'",
    ],
)
def set_state(
    one: OneKey,
    merge: Annotated[
        str | None,
        typer.Option(metavar="JSON", help="Fields to change; the others stay (RFC 7396)."),
    ] = None,
    value: Annotated[str | None, typer.Option(metavar="JSON", help="The whole new state.")] = None,
    condition: Condition = None,
    *,
    request: RequestOptions,
    common: CommonOptions,
) -> None:
    """Change the state of a key. Its owner does it between two records, or refuses; collections
    stay."""
    if (merge is None) == (value is None):
        raise UsageError("give --merge with the fields to change, or --value with the whole state")
    payload = _given({"--merge": merge, "--value": value, "--if": condition})
    _ask("set_state", one, payload, request, common)


@command(
    state,
    "delete",
    examples=[
        "millwheel state delete count_searches cats --reason 'a test by hand'",
    ],
)
def delete_state(
    one: OneKey, condition: Condition = None, *, request: RequestOptions, common: CommonOptions
) -> None:
    """Empty the state of a key, with its collections. Its timers stay."""
    _ask("delete_state", one, _given({"--if": condition}), request, common)


@command(
    timers,
    "cancel",
    examples=[
        "millwheel timers cancel session_of_user 13",
        "millwheel timers cancel session_of_user 13 reminder  # the timer with this tag",
    ],
)
def cancel_timer(timer: OneTimer, request: RequestOptions, *, common: CommonOptions) -> None:
    """Cancel a timer of a key."""
    _ask("cancel_timer", timer, {"tag": timer.tag, "kind": timer.kind}, request, common)


@command(
    timers,
    "fire",
    examples=[
        "millwheel timers fire session_of_user 13",
        "millwheel timers fire session_of_user 13 reminder --kind wall",
    ],
)
def fire_timer(timer: OneTimer, request: RequestOptions, *, common: CommonOptions) -> None:
    """Run process_timer now, with the time that the timer was set for."""
    _ask("fire_timer", timer, {"tag": timer.tag, "kind": timer.kind}, request, common)


def _given(options: dict[str, str | None]) -> dict[str, Any]:
    """The JSON of given options, by their names without dashes."""
    return {
        option.removeprefix("--"): json_of(text, option)
        for option, text in options.items()
        if text is not None
    }


def _ask(
    verb: str, one: OneKey, payload: dict[str, Any], request: RequestOptions, common: CommonOptions
) -> None:
    """Ask the owner of a key for a change."""
    with asking(common, request.pipeline) as desk:
        with desk.transaction() as asked:
            key = key_of(one.key)
            batch = asked.ask(actor(request.reason), verb, one.computation, key, payload)
        found = desk.wait(batch, 1, request.wait)
        report(desk, batch, found, as_json=request.as_json)

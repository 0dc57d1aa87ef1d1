"""``millwheel reprocess``: new code over old input, beside the former pipeline."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated

import typer

from millwheel.cli.command import command
from millwheel.cli.opened_store import opened
from millwheel.cli.operator_desk import actor
from millwheel.cli.options import ChangeOptions, CommonOptions, OptionGroup, PipelineName
from millwheel.cli.plan_text import plan_lines
from millwheel.cli.printing import print_result, tell
from millwheel.cli.shown_line import shown_line
from millwheel.cli.target import load_pipeline
from millwheel.core.quantities import count_of, duration
from millwheel.errors import DeployRefused, UsageError
from millwheel.pipeline import Pipeline
from millwheel.store.console.inspection import inspect, time_text
from millwheel.store.console.presence import Presence
from millwheel.store.copies.catching_up import CatchUp, CatchUpSpeed
from millwheel.store.copies.forks import fork
from millwheel.store.copies.savepoints import find_savepoint, savepoint_name
from millwheel.store.copies.successors import make_successor

app = typer.Typer()


@dataclass(frozen=True)
class NewCode(OptionGroup):
    """The code, and the state with which it begins."""

    code: Annotated[str | None, typer.Option(metavar="MODULE:PIPELINE", help="The new code.")] = (
        None
    )
    label: Annotated[
        str | None,
        typer.Option("--from", metavar="LABEL", help="Begin with the state of this savepoint."),
    ] = None
    from_start: Annotated[
        bool,
        typer.Option(
            "--from-start", help="Begin with no state, and read the sources again: the default."
        ),
    ] = False
    anyway: Annotated[
        bool,
        typer.Option("--anyway", help="Read sources again even if their first rows are gone."),
    ] = False


@dataclass(frozen=True)
class FollowOptions(OptionGroup):
    run: Annotated[
        bool,
        typer.Option("--run", help="Run it in this process until it has caught up."),
    ] = False
    wait: Annotated[
        bool,
        typer.Option("--wait", help="Wait until it has caught up; its workers run elsewhere."),
    ] = False


@command(
    app,
    examples=[
        "millwheel reprocess shop --code shop:pipeline --as shop2",
        "millwheel reprocess shop --code shop:pipeline --as shop2 --from before-march --run",
        "millwheel reprocess shop --as shop2 --wait  # it is there already",
    ],
)
def reprocess(
    pipeline: PipelineName,
    name: Annotated[
        str, typer.Option("--as", metavar="NAME", help="The name of the new pipeline.")
    ],
    *,
    beginning: NewCode,
    following: FollowOptions,
    change: ChangeOptions,
    common: CommonOptions,
) -> None:
    """Run new code over the input beside a pipeline, to take its place.

    The new pipeline writes tables of its own, and nothing outside the store. When it has caught up,
    compare both with `millwheel diff`, and let it take over with `millwheel switch`.
    """
    if beginning.label is not None and beginning.from_start:
        raise UsageError("--from begins with a savepoint's state, --from-start with none: give one")
    code = beginning.code
    loaded = None if code is None else load_pipeline(code, name)
    with opened(common) as presence:
        with inspect(presence.url) as inspection:
            inspection.choose(pipeline)
            is_there = name in inspection.pipelines()
        lines = []
        if not is_there:
            lines = _make(presence, pipeline, name, loaded, beginning, change)
        elif not (following.run or following.wait):
            raise UsageError(
                f"there is a pipeline {name!r} already: follow it with --wait, run it with --run, "
                f"or drop it first: millwheel drop {name}"
            )
        if following.run or following.wait:
            for line in lines:
                tell(line, err=True)
            is_level, code_at_end = _follow(presence, pipeline, name, loaded, following)
            lines = [
                f"{name} has caught up with {pipeline}"
                if is_level
                else f"stopped; {name} has not caught up with {pipeline} yet: run it again"
            ]
        else:
            is_level, code_at_end = False, 0
            lines += [
                f"next: millwheel run {code} --as {name}, or several of millwheel worker",
                f"wait for it: millwheel reprocess {pipeline} --as {name} --wait",
            ]
        if is_level:
            lines.append(f"next: millwheel diff {pipeline} {name}")
            lines.append(f"then: millwheel switch {pipeline} {name}")
    result = {"pipeline": pipeline, "new": name, "made": not is_there, "caught_up": is_level}
    print_result(result, lines, as_json=change.as_json)
    if code_at_end:
        raise typer.Exit(code_at_end)


def _make(
    presence: Presence,
    pipeline: str,
    name: str,
    code: Pipeline | None,
    beginning: NewCode,
    change: ChangeOptions,
) -> list[str]:
    if code is None:
        raise UsageError(f"there is no pipeline {name!r} yet: give its code with --code")
    from millwheel.services.reprocessing import foresee_reprocessing  # the engine: slow to import

    savepoint = None
    if beginning.label is not None:
        savepoint = savepoint_name(pipeline, beginning.label)
        find_savepoint(presence.url, savepoint)
    foreseen = foresee_reprocessing(code, presence.url, pipeline, savepoint)
    if foreseen.plan is not None:
        for line, style in plan_lines(savepoint or pipeline, foreseen.plan):
            tell(line, style, err=True)
        if foreseen.plan.is_refused:
            raise DeployRefused(
                f"this code does not fit the state of {savepoint}: see above. Change it, or "
                "begin without state: --from-start. Nothing was made"
            )
    if foreseen.unreadable and not beginning.anyway:
        raise UsageError(
            f"these sources cannot be read again from their beginning: "
            f"{'; '.join(foreseen.unreadable)}. Begin with the state of a savepoint: millwheel "
            f"savepoint {pipeline} LABEL, and --from LABEL; or, so that records of an Inbox arrive "
            f"in both, with a fork: millwheel fork {pipeline} --as {name} --tee; or read the rows "
            "that are left, with --anyway. Nothing was made"
        )
    by = actor(change.reason)
    if savepoint is None:
        make_successor(presence.url, pipeline, name, address=presence.address, actor=by)
        made = f"made {name}: it begins with no state, and reads its sources from the beginning"
    else:
        copy = fork(presence.url, savepoint, name, actor=by)
        made = f"made {name} of {savepoint}: {copy.rows:,} rows; it reads on from there"
    return [
        made,
        f"it writes tables of its own; nothing leaves the store until millwheel "
        f"switch {pipeline} {name}",
        *(f"the code has no table for {words}, which readers use" for words in foreseen.missing),
    ]


def _follow(
    presence: Presence, pipeline: str, name: str, code: Pipeline | None, following: FollowOptions
) -> tuple[bool, int]:
    """Whether it has caught up, and the exit code."""
    from millwheel.services import reprocessing  # the engine: slow to import

    with inspect(presence.url) as inspection:
        inspection.require_current(name)
    if not following.run:
        with shown_line(keep=True) as draw:
            shown = _CatchUpLine(pipeline, name, draw)
            return reprocessing.await_level(presence.url, pipeline, name, shown.show), 0
    if code is None:
        raise UsageError(f"--run needs the code of {name!r}: give it with --code")
    from millwheel.services import loop
    from millwheel.services.hosting import Beside
    from millwheel.services.interruption import Interruption

    given = code

    async def work() -> tuple[bool, int]:
        with Interruption() as interruption, shown_line(keep=True) as draw:
            shown = _CatchUpLine(pipeline, name, draw)
            is_level = await reprocessing.run_until_level(
                given, presence.url, pipeline, interruption.asked, shown.show,
                Beside(tend=presence.renew),
            )  # fmt: skip
        if is_level:
            return True, 0
        return False, 1 if interruption.signal is None else interruption.exit_code

    return loop.run(work())


class _CatchUpLine:
    """How far the new pipeline is, on one line."""

    def __init__(self, pipeline: str, name: str, draw: Callable[[str], None]) -> None:
        self._pipeline, self._name, self._draw = pipeline, name, draw

    def show(self, found: CatchUp, speed: CatchUpSpeed, workers: int) -> None:
        self._draw(" · ".join(self._parts(found, speed, workers)))

    def _parts(self, found: CatchUp, speed: CatchUpSpeed, workers: int) -> Iterator[str]:
        if found.new is None:
            yield f"{self._name} has not begun"
            return
        yield f"{self._name} at {time_text(found.new)}"
        if found.is_complete:
            yield f"level with {self._pipeline}"
            return
        yield f"behind {self._pipeline}: {found.words}"
        if speed.per_second is not None:
            yield f"event time {speed.per_second:,.0f} × as fast as the clock"
        if speed.seconds_left is not None:
            yield f"{duration(speed.seconds_left)} left"
        yield count_of(workers, "worker") if workers else "no worker runs it"

"""Pause and resume injectors."""

from __future__ import annotations

from functools import partial

import msgspec

from millwheel.errors import UsageError
from millwheel.store.console.administration import pause
from millwheel.store.console.asking import Actor
from millwheel.ui.verb import Asked, Foreseen, FormField, Verb, VerbDesk


class InjectorForm(msgspec.Struct, frozen=True):
    step: str | None = None
    """None: all injectors."""


STEP = {"step": FormField("injector", hint="leave empty for all injectors of the pipeline")}


def _nothing(*, paused: bool) -> str:
    return f"nothing would change: {'paused' if paused else 'running'} already"


def _foresee(desk: VerbDesk, form: InjectorForm, *, paused: bool) -> Foreseen:
    with desk.inspecting() as inspection:
        inspection.require_current(desk.pipeline)
        status = inspection.placed(desk.pipeline)
    known = [one for one in status.computations if one.kind == "injector"]
    asked = [one for one in known if form.step in (None, one.name, one.label)]
    changed = [one.label or one.name for one in asked if one.paused != paused]
    if not asked:
        names = ", ".join(one.name for one in known) or "none"
        return Foreseen([f"there is no such injector; the pipeline has: {names}"], False)
    if not changed:
        return Foreseen([_nothing(paused=paused)], False)
    rest = (
        "Records that were read are processed; their low watermarks stand still until you resume."
        if paused
        else "They read on from where they stopped."
    )
    return Foreseen([f"{'pauses' if paused else 'resumes'} {', '.join(changed)}", rest])


def _carry_out(desk: VerbDesk, actor: Actor, form: InjectorForm, *, paused: bool) -> Asked:
    names = [] if form.step is None else [form.step]
    found = pause(desk.url, desk.pipeline, names, paused=paused, actor=actor)
    if not found.changed:
        raise UsageError(_nothing(paused=paused))
    return Asked(None)


def _verb(name: str, title: str, *, paused: bool) -> Verb[InjectorForm]:
    foresee, carry_out = partial(_foresee, paused=paused), partial(_carry_out, paused=paused)
    return Verb(name, title, InjectorForm, foresee, carry_out, STEP)


PAUSE = _verb("pause", "Pause injectors", paused=True)
RESUME = _verb("resume", "Resume injectors", paused=False)

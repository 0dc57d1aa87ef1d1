"""The changes, by name; a further one is a row here."""

from __future__ import annotations

from typing import Any

from millwheel.ui.verb import Verb
from millwheel.ui.verbs.injectors import PAUSE, RESUME
from millwheel.ui.verbs.key_changes import CANCEL_TIMER, DELETE_STATE, FIRE_TIMER, SET_STATE

VERBS: dict[str, Verb[Any]] = {
    verb.name: verb for verb in (PAUSE, RESUME, SET_STATE, DELETE_STATE, CANCEL_TIMER, FIRE_TIMER)
}

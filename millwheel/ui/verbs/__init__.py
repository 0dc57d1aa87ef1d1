"""The changes, by name; a further one is a row here."""

from __future__ import annotations

from typing import Any

from millwheel.ui.verb import Verb
from millwheel.ui.verbs.injectors import PAUSE, RESUME
from millwheel.ui.verbs.interval_verbs import MERGE, MOVE, SPLIT, UNPIN
from millwheel.ui.verbs.key_verbs import CANCEL_TIMER, DELETE_STATE, FIRE_TIMER, SET_STATE
from millwheel.ui.verbs.letter_verbs import DISCARD, EDIT, RETRY, SET_ASIDE, WITHDRAW

VERBS: dict[str, Verb[Any]] = {
    verb.name: verb
    for verb in (
        PAUSE,
        RESUME,
        RETRY,
        EDIT,
        DISCARD,
        SET_ASIDE,
        WITHDRAW,
        SET_STATE,
        DELETE_STATE,
        CANCEL_TIMER,
        FIRE_TIMER,
        MOVE,
        UNPIN,
        SPLIT,
        MERGE,
    )
}

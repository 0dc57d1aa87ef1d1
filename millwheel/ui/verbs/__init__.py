"""The changes, by name; a further one is a row here."""

from __future__ import annotations

from typing import Any

from millwheel.ui.verb import Verb
from millwheel.ui.verbs.injectors import PAUSE, RESUME
from millwheel.ui.verbs.interval_verbs import MERGE, MOVE, SPLIT, UNPIN

VERBS: dict[str, Verb[Any]] = {
    verb.name: verb for verb in (PAUSE, RESUME, MOVE, UNPIN, SPLIT, MERGE)
}

"""The changes, by name; a further one is a row here."""

from __future__ import annotations

from typing import Any

from millwheel.ui.verb import Verb
from millwheel.ui.verbs.injectors import PAUSE, RESUME

VERBS: dict[str, Verb[Any]] = {verb.name: verb for verb in (PAUSE, RESUME)}

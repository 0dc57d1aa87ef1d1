"""A fingerprint of all that a simulated run did."""

from __future__ import annotations

from hashlib import sha256

from tests.sim.cluster import run
from tests.sim.drawing import draw


def digest(seed: int) -> str:
    """All that happened in a run, to the last line."""
    return sha256("\n".join(run(draw(seed)).lines(10**9)).encode()).hexdigest()

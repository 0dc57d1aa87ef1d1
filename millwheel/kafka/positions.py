"""Decides about a bundle by the position that Kafka has: the one place of the rules of exactly
once.

The position of a scope in Kafka is the number of the last bundle written there, in the same
transaction. Postgres has the number of the last bundle that was read back as written. A store that
has lost commits may give an interval the id of a lost one: positions of that one are below the
numbers of the new one (`BundleId.inherited`), and say nothing of it.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Literal

from millwheel.bundles import BundleId
from millwheel.errors import OutputError
from millwheel.kafka.port import Position

OnLostCommits = Literal["fail", "repeat"]


def is_written(
    what: str,
    bundle: BundleId,
    position: Position | None,
    *,
    now: int,
    kept: timedelta,
    on_lost_commits: OnLostCommits,
) -> bool:
    """Whether Kafka has a bundle already.

    Args:
        what: names the sink and the scope in messages.
        position: the position in Kafka, read after the writer has become the only one.
        now: microseconds.
        kept: how long the cluster keeps the position of a group without members, at least.

    Raises:
        OutputError: a guess would lose or repeat records; the message names the remedy.
    """
    number, previous = bundle.number, bundle.previous
    if position is None or position.number <= bundle.inherited:
        _check_not_expired(what, bundle, now, kept)
        return False
    if position.number == number and bundle.is_repeat:
        return True
    if position.number > previous and on_lost_commits == "fail":
        raise OutputError(
            f"{what}: Kafka has bundle {position.number}, but the store has only delivered bundle "
            f"{previous}: the store was restored from a backup or has lost commits, or a copy of "
            "it writes to the same topic. Continuing would write the records of the bundles in "
            'between again. If that is acceptable, give on_lost_commits="repeat"; for a copy, '
            "give KafkaSink(id_prefix=...) another prefix"
        )
    if position.number < previous:
        raise OutputError(
            f"{what}: Kafka has bundle {position.number}, but bundle {previous} was acknowledged: "
            "bundles in between are missing from the topic, as after a transaction that was "
            "aborted by hand or a reset of the group. Write the missing records again from their "
            f"origin, then set the offset of the group to {previous}, and start again"
        )
    return False


def _check_not_expired(what: str, bundle: BundleId, now: int, kept: timedelta) -> None:
    """Without a position, a bundle was not written, unless the position has expired since.

    Raises:
        OutputError: it may have.
    """
    if not bundle.is_repeat:
        return  # this worker has closed it, and has not tried to write it
    age = timedelta(microseconds=now - bundle.closed_at)
    if age < kept:
        return
    raise OutputError(
        f"{what}: bundle {bundle.number} may have been written {age.days} days ago, but Kafka has "
        f"no position any more: it keeps one for {kept.days} days or more "
        "(offsets.retention.minutes). Look whether the topic has the records of the bundle; if "
        f"it has, set the offset of the group to {bundle.number}, otherwise to {bundle.previous}, "
        "and start again"
    )

"""The figures of a worker, for people and for the heartbeat."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from millwheel.core.model import MAX_TIME
from millwheel.runtime.environment import Environment
from millwheel.runtime.exchange.exchange import Exchange
from millwheel.runtime.interval.interval import waiting
from millwheel.runtime.interval.ports import SourcePort
from millwheel.runtime.network.courier import Courier
from millwheel.runtime.process.load import Meter


class WorkerFigures:
    def __init__(self, env: Environment, exchange: Exchange, courier: Courier | None) -> None:
        self._env = env
        self._exchange = exchange
        self._courier = courier
        self._meter = Meter(env.clock, env.process)

    def progress(self) -> dict[str, Any]:
        exchange = self._exchange
        intervals = exchange.intervals
        return {
            "processed": self._env.processed,
            "read": sum(task.rows for task in exchange.source_tasks),
            "low_watermark": min(
                (interval.watermarks.durable for interval in intervals), default=MAX_TIME
            ),
            "backlog": sum(map(waiting, intervals)),
            "unacked": sum(log.unacked for log, _ in exchange.logs.values()),
            "share": _least_share(exchange.source_tasks),
            "wall_timers": sum(i.timers.next_wall() is not None for i in intervals),
            "workers": None if self._courier is None else 1 + len(self._courier.peers.links()),
        }

    def load(self) -> dict[str, Any]:
        """`progress`, and the load since the previous heartbeat."""
        peers = None if self._courier is None else self._courier.peers
        waits = self._env.store_wait
        return {
            **self.progress(),
            **self._meter.take(self._exchange.intervals),
            "unreached": [] if peers is None else peers.unreached(),
            "expired": peers is not None and peers.expired,
            **({} if waits is None else {"waits": str(waits)}),
            **self._env.options.in_load,
        }


def _least_share(tasks: Iterable[SourcePort]) -> float | None:
    """The least part of its input that a source has read, 0 to 1; None if some source has no
    end."""
    shares = [task.progress() for task in tasks]
    known = [share for share in shares if share is not None]
    return None if len(known) < len(shares) else min(known, default=1.0)

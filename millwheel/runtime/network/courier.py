"""One worker's end of all links: dispatches incoming frames to `sender`, `answers` and `receiver`.

A frame counts only if its sender owns the interval or log that it names (I18); a `RootReport`
counts from any worker of the pipeline, since it names a token that this worker gave out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from millwheel.runtime.environment import Environment
from millwheel.runtime.exchange.exchange import Exchange
from millwheel.runtime.exchange.watermark_publisher import WatermarkPublisher
from millwheel.runtime.interval.interval import Interval
from millwheel.runtime.network.answers import Answers
from millwheel.runtime.network.frames import (
    Acknowledge,
    Ask,
    Deliver,
    DeliverChunk,
    EdgeReport,
    Frame,
    Gap,
    Loose,
    NotMine,
    Progress,
    Report,
    RootReport,
    TooNew,
)
from millwheel.runtime.network.peer_ports import Link, Network
from millwheel.runtime.network.peers import Peers
from millwheel.runtime.network.receiver import Receiver
from millwheel.runtime.network.remote_intervals import RemoteIntervals
from millwheel.runtime.network.sender import Sender
from millwheel.runtime.process.lease import Lease


class Courier:
    def __init__(
        self,
        env: Environment,
        exchange: Exchange,
        publisher: WatermarkPublisher,
        lease: Lease,
        network: Network,
        pause: Callable[[frozenset[int]], None],
    ) -> None:
        self._network = network
        self._exchange = exchange
        self.refused: Counter[str] = Counter()
        self.peers = Peers(env, network)
        self.sender = Sender(env, exchange, self.peers, self.refused)
        self.remotes = RemoteIntervals(
            env, exchange, publisher, lease, self.peers, self.sender, self.refused, pause
        )
        self.answers = Answers(env, exchange, self.sender, self.remotes)
        self.receiver = Receiver(env, exchange, self.remotes, self.refused)
        self.remotes.on_placed = self.receiver.answer_deferred

    # -- links (`Handler`) ------------------------------------------------------------------

    def link_up(self, link: Link) -> None:
        if link.outgoing:
            self.peers.link_up(link)
            self.sender.link_up(link)

    def link_down(self, link: Link, reason: str) -> None:
        self.sender.link_down(link)
        if not link.outgoing:
            self.remotes.trust.forget(link.peer)
        self.peers.link_down(link)
        self.receiver.link_down(link)
        self.remotes.request_refresh()  # its worker may be dead, and its liveness lock tells

    def link_refused(self, link: Link) -> None:
        """This worker may know an earlier incarnation of the database server."""
        self.remotes.request_refresh()

    def link_drained(self, link: Link) -> None:
        self.sender.link_drained(link)

    def received(self, link: Link, frame: Frame) -> None:
        match frame:
            case Deliver() | DeliverChunk():
                self.receiver.receive(link, frame)
            case Acknowledge():
                self.answers.acknowledged(link, frame)
            case Ask():
                self.receiver.answer(link, frame)
            case Progress():
                self.answers.progress(link, frame)
            case Report():
                self.remotes.receive_reports(link.peer, frame.intervals)
            case NotMine():
                self.answers.not_mine(link, frame)
            case Gap():
                self.answers.restart_stream(link, frame)
            case TooNew():
                self.answers.halt(link, frame)
            case Loose():
                self.receiver.receive_loose(link, frame)
            case RootReport():
                if self.receiver.knows(link):
                    self._exchange.trees.receive_reports(frame.reports)

    # -- for other rooms --------------------------------------------------------------------

    def acknowledge(self, log: int, receiver: int, seqs: Iterable[int]) -> None:
        self.receiver.acknowledge(log, receiver, seqs)

    def report(self, owner: int, reports: list[EdgeReport]) -> None:
        self.sender.report(owner, reports)

    def waiting(self) -> Iterator[int]:
        """The negative token of each loose record that waits for a link."""
        for remote in self.sender.remotes():
            yield from (delivery.log for delivery in remote.loose)

    def forget(self, interval: Interval) -> None:
        self.receiver.forget(interval)
        self.sender.forget(interval)

    async def close(self) -> None:
        self.sender.drop_unsent()
        await self._network.close()

    def hang_up(self) -> None:
        """Drop unsent frames and end all links."""
        self.sender.drop_unsent()
        self._network.hang_up()

"""One worker's end of all links to other workers: what comes and goes, frame by frame.

* `millwheel.runtime.network.sender` sends records, and low watermarks once they are stored;
* `millwheel.runtime.network.answers` takes what peers say of records that were sent to them;
* `millwheel.runtime.network.receiver` takes records, and acknowledges them.

What comes over a link is believed of the owner of what it speaks of (I18): `Report` as
`RemoteIntervals.hear` says, `RootReport` of any worker of the pipeline, since it names a token that is
known, and all other frames as those modules say. A frame that no worker sends raises `PeerError`, which
closes its connection, and changes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from millwheel.runtime.environment import Environment
from millwheel.runtime.interval.exchange import Exchange
from millwheel.runtime.interval.interval import Interval
from millwheel.runtime.interval.watermark_publisher import WatermarkPublisher
from millwheel.runtime.modes.tree_acks import TreeAcks
from millwheel.runtime.network.answers import Answers
from millwheel.runtime.network.frames import (
    Acknowledge,
    Ask,
    Deliver,
    Frame,
    Gap,
    Loose,
    NotMine,
    Progress,
    Report,
    RootReport,
    Told,
    TooNew,
)
from millwheel.runtime.network.peers import Peers
from millwheel.runtime.network.ports import Link, Network
from millwheel.runtime.network.receiver import Receiver
from millwheel.runtime.network.remote_intervals import RemoteIntervals
from millwheel.runtime.network.sender import Sender
from millwheel.runtime.process.lease import Lease


class Courier:
    """The handler of all links, and the way to other workers for the rooms of this one.

    Args:
        pause: pauses the injectors of these computations, and no others.
    """

    def __init__(
        self,
        env: Environment,
        exchange: Exchange,
        trees: TreeAcks,
        publisher: WatermarkPublisher,
        lease: Lease,
        network: Network,
        pause: Callable[[frozenset[int]], None],
    ) -> None:
        self._network = network
        self._trees = trees
        self.refused: Counter[str] = Counter()
        """Frames that were not taken, by reason."""
        self.peers = Peers(env, network)
        self.sender = Sender(env, exchange, self.peers, self.refused)
        self.remotes = RemoteIntervals(
            env, exchange, publisher, lease, self.peers, self.sender, self.refused, pause
        )
        self.answers = Answers(env, exchange, self.sender, self.remotes)
        self.receiver = Receiver(env, exchange, trees, self.remotes, self.refused)
        self.remotes.on_placed = self.receiver.reconsider

    # -- links (`Handler`) ------------------------------------------------------------------

    def link_up(self, link: Link) -> None:
        """Send to a worker that came (back) what it may have missed."""
        if link.outgoing:
            self.peers.came_up(link)
            self.sender.link_up(link)

    def link_down(self, link: Link, reason: str) -> None:
        """Records on their way are sent again when the link is up again."""
        self.sender.link_down(link)
        if not link.outgoing:
            self.remotes.trust.forget(link.peer)
        self.peers.went_down(link)
        self.receiver.link_down(link)

    def link_refused(self, link: Link) -> None:
        """Look at the store: perhaps this worker knows an earlier incarnation of the server."""
        self.remotes.look_up()

    def link_drained(self, link: Link) -> None:
        """Continue with records that had to wait."""
        self.sender.link_drained(link)

    def received(self, link: Link, frame: Frame) -> None:
        """Take a frame of another worker.

        Raises:
            PeerError: no worker sends such a frame.
        """
        match frame:
            case Deliver():
                self.receiver.receive(link, frame)
            case Acknowledge():
                self.answers.acknowledged(link, frame)
            case Ask():
                self.receiver.answer(link, frame)
            case Progress():
                self.answers.progress(link, frame)
            case Report():
                self.remotes.hear(link.peer, frame.intervals)
            case NotMine():
                self.answers.lose_owner(link, frame)
            case Gap():
                self.answers.begin_again(link, frame)
            case TooNew():
                self.answers.halt(link, frame)
            case Loose():
                self.receiver.receive_loose(link, frame)
            case RootReport():
                if self.receiver.knows(link):
                    self._trees.receive_reports(frame.told)

    # -- for other rooms --------------------------------------------------------------------

    def acknowledge(self, log: int, receiver: int, seqs: Iterable[int]) -> None:
        """Acknowledge records to the owner of a log, which is another worker (I1)."""
        self.receiver.acknowledge(log, receiver, seqs)

    def report(self, owner: int, told: list[Told]) -> None:
        """Send reports of trees to the worker whose tokens begin with `owner`."""
        self.sender.report(owner, told)

    def waiting(self) -> Iterator[int]:
        """The logs of records of no log that wait for a link."""
        for remote in self.sender.remotes():
            yield from (delivery.log for delivery in remote.loose)

    def forget(self, interval: Interval) -> None:
        """An interval is gone: its senders begin again, here or elsewhere."""
        self.receiver.forget(interval)
        self.sender.forget(interval)

    async def close(self) -> None:
        """Say goodbye to all workers."""
        self.sender.drop_unsent()
        await self._network.close()

    def hang_up(self) -> None:
        """Send nothing more of what this courier holds, and end all links; others may follow."""
        self.sender.drop_unsent()
        self._network.hang_up()

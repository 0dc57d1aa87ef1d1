"""Handles peers' answers about records sent to them.

An answer counts only from the worker that the stream is sent to, if it is believed to own the
receiving interval, and for records that were sent to it and are un-ACKed (I18).
"""

from __future__ import annotations

from millwheel.runtime.environment import Environment
from millwheel.runtime.exchange.exchange import Exchange
from millwheel.runtime.network.frames import Acknowledge, Gap, NotMine, Progress, TooNew
from millwheel.runtime.network.peer_ports import Link
from millwheel.runtime.network.remote import Remote
from millwheel.runtime.network.remote_intervals import RemoteIntervals
from millwheel.runtime.network.sender import Sender
from millwheel.runtime.network.wire_stream import Outgoing, check_runs


class Answers:
    def __init__(
        self, env: Environment, exchange: Exchange, sender: Sender, remotes: RemoteIntervals
    ) -> None:
        self._env = env
        self._exchange = exchange
        self._sender = sender
        self._remotes = remotes
        self._logged_too_new: set[str] = set()

    def _stream(
        self, link: Link, frame: Gap | NotMine | Progress | TooNew
    ) -> tuple[Remote, Outgoing] | None:
        remote = self._remotes.remote(frame.interval)
        if remote is None or remote.owner != link.peer:
            return None
        stream = remote.streams.get(frame.log)
        if stream is None or stream.receiver != link.peer or stream.epoch != frame.epoch:
            return None
        return remote, stream

    def acknowledged(self, link: Link, frame: Acknowledge) -> None:
        """The records may belong to any interval of the computation that the peer owns."""
        check_runs(frame.seqs)
        arrived: list[int] = []
        for remote in self._remotes.remotes():
            if remote.owner != link.peer or remote.step.id != frame.receiver:
                continue
            stream = remote.streams.get(frame.log)
            if stream is not None and stream.receiver == link.peer:
                arrived += stream.acknowledge(frame.seqs)
        if arrived:
            self._exchange.acknowledged(frame.log, frame.receiver, arrived)

    def restart_stream(self, link: Link, gap: Gap) -> None:
        found = self._stream(link, gap)
        if found is not None and not found[1].halted:
            remote, _ = found
            self._sender.begin(remote, gap.log)
            self._sender.has_work(remote)

    def progress(self, link: Link, answer: Progress) -> None:
        """The receiver has all records; acknowledge the durable ones: their ACKs may be lost."""
        found = self._stream(link, answer)
        if found is not None:
            remote, stream = found
            durable = stream.progress(answer.epoch, answer.done, takes=answer.takes)
            if durable:
                self._exchange.acknowledged(answer.log, remote.step.id, durable)
            self._sender.has_work(remote)

    def not_mine(self, link: Link, refusal: NotMine) -> None:
        found = self._stream(link, refusal)
        if found is not None:
            remote = found[0]
            remote.owner, remote.refused_by = None, link.peer
            self._remotes.request_refresh()

    def halt(self, link: Link, refusal: TooNew) -> None:
        found = self._stream(link, refusal)
        if found is not None:
            remote, stream = found
            stream.halted = True
            if link.peer not in self._logged_too_new:
                self._logged_too_new.add(link.peer)
                self._env.log.info("peer_runs_older_code", peer=link.peer, of=remote.step.name)

"""The links of this worker to the other workers of the pipeline."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from millwheel.runtime.environment import Environment
from millwheel.runtime.modes.tree_roots import owner_bits
from millwheel.runtime.network.peer_ports import Link, Network


class Peers:
    def __init__(self, env: Environment, network: Network) -> None:
        self._env = env
        self._network = network
        self._links: dict[str, Link] = {}
        self._of_tokens: dict[int, list[Link]] = {}
        """Links by the leading bits of the workers' tokens."""
        self._down_since: dict[str, float] = {}
        """Monotonic time since which the link to a worker is down."""

    def connect_to(self, workers: dict[str, str]) -> None:
        for worker in [w for w in self._links if w not in workers]:
            self._links.pop(worker).close()
            self._down_since.pop(worker, None)
        for worker, address in workers.items():
            if worker not in self._links:
                self._links[worker] = self._network.link(worker, address)
                self._down_since[worker] = self._env.clock.monotonic()
        self._of_tokens.clear()
        for worker, link in self._links.items():
            self._of_tokens.setdefault(owner_bits(worker), []).append(link)

    def link(self, worker: str | None) -> Link | None:
        return self._links.get(worker or "")

    def links(self) -> Collection[Link]:
        return self._links.values()

    def of_token(self, owner: int) -> Iterable[Link]:
        return self._of_tokens.get(owner, ())

    def reaches(self, worker: str) -> bool:
        return worker in self._links and worker not in self._down_since

    def down(self) -> list[str]:
        return list(self._down_since)

    def lost_within(self, seconds: float) -> bool:
        begin = self._env.clock.monotonic() - seconds
        return any(since > begin for since in self._down_since.values())

    def excuse(self, worker: str) -> None:
        """Do not count a worker as unreachable yet: user code blocks its event loop."""
        if worker in self._down_since:
            self._down_since[worker] = self._env.clock.monotonic()

    def unreached(self) -> list[str]:
        """Workers unreachable for the duration of a lease: this worker cannot share the pipeline
        with them."""
        until = self._env.clock.monotonic() - self._env.settings.lease_seconds
        return [worker for worker, since in self._down_since.items() if since <= until]

    @property
    def expired(self) -> bool:
        return bool(self._network.expired)

    def link_up(self, link: Link) -> None:
        self._down_since.pop(link.peer, None)

    def link_down(self, link: Link) -> None:
        if self._links.get(link.peer) is link:
            self._down_since[link.peer] = self._env.clock.monotonic()

"""The network of a simulated cluster: the `FakeNetwork`, reached from machines that may stand still
or end.

What a worker writes is carried by the fake network, which belongs to no machine; what comes to a
worker is taken by its own machine: later if it is paused, never if it is gone.
"""

from __future__ import annotations

import asyncio
from contextvars import copy_context
from typing import Any

from millwheel.runtime.network.frames import Acknowledge, decode
from millwheel.runtime.network.peer_ports import Admit, Make, Visitor
from millwheel.testing.fake_network import FakeMedium, FakeNetwork, Fate, Weather
from millwheel.testing.virtual_loop import Machine
from tests.sim.watch import Watch

ACKNOWLEDGE = Acknowledge.__struct_config__.tag
"""The second byte of its body."""


class Sky:
    """The fates of frames: weather, and directions in which nothing comes through.

    What is acknowledged on the wire is told to a watch when it is sent.
    """

    def __init__(self, weather: Weather, watch: Watch) -> None:
        self.weather = weather
        self._watch = watch
        self.blocked: set[tuple[str, str]] = set()
        """(from, to)."""

    def __call__(self, sender: str, receiver: str, body: bytes) -> Fate:
        if body[1] == ACKNOWLEDGE:
            frame = decode(body)
            assert isinstance(frame, Acknowledge)
            self._watch.acknowledged(sender, frame)
        if (sender, receiver) in self.blocked:
            return Fate(copies=0)
        return self.weather(sender, receiver, body)


class Home(Visitor):
    """A protocol whose callbacks run on its machine, whoever calls."""

    def __init__(self, inner: asyncio.BaseProtocol, machine: Machine) -> None:
        self._inner: Any = inner
        self._machine = machine

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._machine.do(self._inner.connection_made, Outside(transport))

    def data_received(self, data: bytes) -> None:
        self._machine.do(self._inner.data_received, data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._machine.do(self._inner.connection_lost, exc)

    def pause_writing(self) -> None:
        self._machine.do(self._inner.pause_writing)

    def resume_writing(self) -> None:
        self._machine.do(self._inner.resume_writing)


class Outside(asyncio.Transport):
    """A transport whose work is done outside of the machine that uses it."""

    _nowhere = copy_context()

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self._inner = inner

    def _do(self, what: Any, *args: Any) -> Any:
        return self._nowhere.copy().run(what, *args)

    def write(self, data: Any) -> None:
        self._do(self._inner.write, bytes(data))

    def close(self) -> None:
        self._do(self._inner.close)

    def abort(self) -> None:
        self._do(self._inner.abort)

    def is_closing(self) -> bool:
        return bool(self._inner.is_closing())

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._inner.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return int(self._inner.get_write_buffer_size())

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._inner.get_extra_info(name, default)


class Spot(FakeMedium):
    """Where one machine is in the fake network."""

    def __init__(self, ether: FakeNetwork, machine: Machine) -> None:
        super().__init__(ether, machine.name)
        self._machine = machine

    async def listen(self, admit: Admit, greeting_seconds: float) -> str:
        return await super().listen(
            lambda remote: Home(admit(remote), self._machine), greeting_seconds
        )

    async def connect(self, make: Make, address: str) -> None:
        await super().connect(lambda: Home(make(), self._machine), address)

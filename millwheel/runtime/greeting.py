"""How two workers find out that they belong together, as plain data: no bytes, no time.

::

    caller                                            listener
      Hello(version, pipeline, worker, nonce,  ->       fits? has the nonce
            incarnation of the store)
      the one I called? fits?                  <-       Hello(version, pipeline, worker, nonce,
                                                              incarnation of the store)
      Proof(digest of both Hellos)             ->       knows the secret?
      knows the secret?                        <-       Proof(digest of both Hellos)
                                               <-       Welcome()                      up
      up

Whoever finds that something does not fit says ``Refuse(reason)`` and closes. The listener shows
its proof only to somebody who has shown his, and each digest says which side made it, so that
nobody can send it back as his own. A digest covers both nonces: one that was heard is of no use
for another connection.

What it does not do: the secret proves who is there when a connection begins; who can change
packets on their way can change what follows. Against that there is TLS (`millwheel.services.tcp`).
A short secret can be guessed from a proof that was overheard: use 16 random bytes or more.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from millwheel.errors import PeerError, UsageError
from millwheel.runtime.frames import VERSION, Frame, Hello, Proof, Welcome, named

Role = Literal["caller", "listener"]

SECRET_BYTES = 16
"""A shorter secret is refused."""

STEPS: dict[Role, dict[str, tuple[type[Frame], str]]] = {
    "caller": {
        "hello": (Hello, "proof"),
        "proof": (Proof, "welcome"),
        "welcome": (Welcome, "done"),
    },
    "listener": {
        "hello": (Hello, "proof"),
        "proof": (Proof, "done"),
    },
}
"""What each side waits for, and for what after that."""


@dataclass(frozen=True)
class Identity:
    """Who a worker is on the wire."""

    pipeline: str
    worker: str
    secret: bytes | None = field(default=None, repr=False)
    """What all workers of the pipeline know and nobody else."""

    def __post_init__(self) -> None:
        if self.secret is not None and len(self.secret) < SECRET_BYTES:
            raise UsageError(
                f"the workers' shared secret has {len(self.secret)} bytes; it can be guessed with "
                f"less than {SECRET_BYTES}: make one with python -c 'import secrets; "
                "print(secrets.token_hex(16))'"
            )


class Greeting:
    """One side of the greeting of one connection.

    Args:
        expected: the worker who is called; None: this side is the listener.
        nonce: random bytes nobody has seen.
        incarnation: of the store's server, as this worker knows it.
    """

    def __init__(
        self, identity: Identity, nonce: bytes, *, expected: str | None, incarnation: str = ""
    ) -> None:
        self._identity = identity
        self._expected = expected
        self._role: Role = "listener" if expected is None else "caller"
        self._state = "hello"
        self._mine = Hello(VERSION, identity.pipeline, identity.worker, nonce, incarnation)
        self._theirs = self._mine
        self.peer = ""
        """The worker on the other side, once `done`."""

    @property
    def done(self) -> bool:
        """Whether everything fits, and the connection can be used."""
        return self._state == "done"

    def begin(self) -> list[Frame]:
        """What is said before anything is heard."""
        return [self._mine] if self._role == "caller" else []

    def receive(self, frame: Frame) -> list[Frame]:
        """Take the next frame; gives what is to be answered.

        Raises:
            PeerError: it does not fit; the text is for both sides.
        """
        wanted, after = STEPS[self._role][self._state]
        if not isinstance(frame, wanted):
            raise PeerError(f"{wanted.__name__} must come here, not {named(frame)}")
        answers: list[Frame] = []
        if isinstance(frame, Hello):
            self._check(frame)
            self._theirs = frame
            answers = [self._mine] if self._role == "listener" else [self._proof(self._role)]
        elif isinstance(frame, Proof):
            self._verify(frame)
            if self._role == "listener":
                answers = [self._proof(self._role), Welcome()]
        self._state = after
        if self.done:
            self.peer = self._theirs.worker
        return answers

    def _check(self, hello: Hello) -> None:
        mine = self._mine
        if hello.version != mine.version:
            raise PeerError(
                f"a worker with version {hello.version} of the protocol met one with "
                f"{mine.version}; run the same millwheel everywhere"
            )
        if hello.pipeline != mine.pipeline:
            raise PeerError(f"this is not a worker of the pipeline {hello.pipeline!r}")
        if hello.worker == mine.worker:
            raise PeerError(f"both sides call themselves worker {hello.worker!r}")
        if self._expected is not None and hello.worker != self._expected:
            raise PeerError(f"worker {hello.worker!r} listens where {self._expected!r} was called")
        if hello.incarnation != mine.incarnation:
            raise PeerError(
                "the database server has restarted or failed over, and one of the two workers has not "
                "noticed yet; it starts over as soon as it does"
            )

    def _verify(self, proof: Proof) -> None:
        other: Role = "caller" if self._role == "listener" else "listener"
        if not hmac.compare_digest(proof.digest, self._proof(other).digest):
            raise PeerError("the shared secret of the two workers is not the same")

    def _proof(self, role: Role) -> Proof:
        """That of one side, as who knows the secret makes it."""
        secret = self._identity.secret
        if secret is None:
            return Proof(b"")
        caller, listener = self._mine, self._theirs
        if self._role == "listener":
            caller, listener = listener, caller
        said = msgspec.msgpack.encode((role, caller, listener))
        return Proof(hmac.digest(secret, said, "sha256"))

"""The greeting of two workers, which proves that both belong to the pipeline; plain data: no bytes, no time.

::

    caller                                            listener
      Hello(version, pipeline, worker, ...)    ->       check it; keep the nonce
      check it; the worker that was called?    <-       Hello(version, pipeline, worker, ...)
      Proof(digest of both Hellos)             ->       check the digest
      check the digest                         <-       Proof(digest of both Hellos)
                                               <-       Welcome()                      up
      up

There is always a secret: an operator gives it to all workers, or it is the store's own, which
the first worker of a pipeline creates and every worker reads before it listens (decision 41). A
`Hello` names the source of its sender's secret, so that two workers with different secrets can
report the cause.

A side that finds a mismatch sends ``Refuse(reason)`` and closes the connection. The listener sends
its proof only after it has verified the caller's. Each digest includes the role of its sender, so that
neither side can send the other's digest back as its own. A digest covers both nonces: an intercepted
one is useless for another connection.

The secret proves that the peer belongs to the pipeline when a connection begins. It does not
encrypt, and a man in the middle can change later frames: TLS prevents both
(`millwheel.services.tcp`). A short secret can be guessed from an intercepted proof, so a given secret
needs 16 random bytes or more; the store's has 32.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from millwheel.errors import PeerError, UsageError
from millwheel.runtime.network.frames import VERSION, Frame, Hello, Proof, Welcome, named

Role = Literal["caller", "listener"]

SECRET_BYTES = 16
"""Minimum length of a secret."""

Origin = Literal["given", "store"]
"""The source of a worker's secret."""

ORIGINS: dict[str, str] = {
    "given": "the secret from --secret-file or MILLWHEEL_SECRET",
    "store": "the secret in the store",
}
"""The name of each source in messages."""

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
"""For each role and state: the expected frame, and the state after it."""


@dataclass(frozen=True)
class Secret:
    """The shared secret of a pipeline's workers."""

    value: bytes = field(repr=False)
    origin: Origin

    def __post_init__(self) -> None:
        if len(self.value) < SECRET_BYTES:
            raise UsageError(
                f"the workers' shared secret has {len(self.value)} bytes; a secret of fewer than "
                f"{SECRET_BYTES} can be guessed. Make one with: python -c 'import secrets; "
                "print(secrets.token_hex(16))'"
            )


@dataclass(frozen=True)
class Identity:
    """A worker's identity in the greeting."""

    pipeline: str
    worker: str
    secret: Secret


class Handshake:
    """One side of the greeting of one connection.

    Args:
        nonce: random bytes for this connection only.
        expected: the worker that is called; None if this side is the listener.
        incarnation: the incarnation of the database server that this worker knows.
    """

    def __init__(
        self, identity: Identity, nonce: bytes, *, expected: str | None, incarnation: str = ""
    ) -> None:
        self._identity = identity
        self._expected = expected
        self.role: Role = "listener" if expected is None else "caller"
        self._state = "hello"
        self._mine = Hello(
            VERSION,
            identity.pipeline,
            identity.worker,
            nonce,
            identity.secret.origin,
            incarnation,
        )
        self._theirs = self._mine
        self.peer = ""
        """The worker on the other side; empty until `done`."""

    @property
    def done(self) -> bool:
        """Whether the greeting succeeded, so that the connection can be used."""
        return self._state == "done"

    def begin(self) -> list[Frame]:
        """The frames that this side sends first."""
        return [self._mine] if self.role == "caller" else []

    def receive(self, frame: Frame) -> list[Frame]:
        """Check the next frame, and return the frames to answer with.

        Raises:
            PeerError: the two workers do not match; the message is written for both sides.
        """
        wanted, after = STEPS[self.role][self._state]
        if not isinstance(frame, wanted):
            raise PeerError(f"a frame {named(frame)} arrived where {wanted.__name__} is expected")
        answers: list[Frame] = []
        if isinstance(frame, Hello):
            self._check(frame)
            self._theirs = frame
            answers = [self._mine] if self.role == "listener" else [self._proof(self.role)]
        elif isinstance(frame, Proof):
            self._verify(frame)
            if self.role == "listener":
                answers = [self._proof(self.role), Welcome()]
        self._state = after
        if self.done:
            self.peer = self._theirs.worker
        return answers

    def _check(self, hello: Hello) -> None:
        mine = self._mine
        if hello.version != mine.version:
            raise PeerError(
                f"a worker with version {hello.version} of the protocol connected to one with version "
                f"{mine.version}; install the same version of millwheel everywhere"
            )
        if hello.pipeline != mine.pipeline:
            raise PeerError(f"this is not a worker of the pipeline {hello.pipeline!r}")
        if hello.worker == mine.worker:
            raise PeerError(f"both sides call themselves worker {hello.worker!r}")
        if self._expected is not None and hello.worker != self._expected:
            raise PeerError(
                f"worker {hello.worker!r} listens at the address of worker {self._expected!r}"
            )
        if hello.secret != mine.secret:
            theirs = ORIGINS.get(hello.secret, "a secret of an unknown kind")
            raise PeerError(
                f"the two workers use different secrets: worker {mine.worker!r} uses "
                f"{ORIGINS[mine.secret]}, worker {hello.worker!r} uses {theirs}. Give the same secret "
                "to all workers of the pipeline, or to none"
            )
        if hello.incarnation != mine.incarnation:
            raise PeerError(
                "the database server has restarted or failed over, and one of the two workers has not "
                "noticed it yet; that worker starts over as soon as it does"
            )

    def _verify(self, proof: Proof) -> None:
        other: Role = "caller" if self.role == "listener" else "listener"
        if not hmac.compare_digest(proof.digest, self._proof(other).digest):
            raise PeerError(
                "the two workers have different shared secrets (each uses "
                f"{ORIGINS[self._mine.secret]})"
            )

    def _proof(self, role: Role) -> Proof:
        """The proof that a side must send: an HMAC over its role and both `Hello` frames."""
        caller, listener = self._mine, self._theirs
        if self.role == "listener":
            caller, listener = listener, caller
        content = msgspec.msgpack.encode((role, caller, listener))
        return Proof(hmac.digest(self._identity.secret.value, content, "sha256"))

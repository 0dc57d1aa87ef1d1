"""How two workers find out that they belong together, as plain data: no bytes, no time.

::

    caller                                            listener
      Hello(version, pipeline, worker, ...)    ->       fits? has the nonce
      the one I called? fits?                  <-       Hello(version, pipeline, worker, ...)
      Proof(digest of both Hellos)             ->       knows the secret?
      knows the secret?                        <-       Proof(digest of both Hellos)
                                               <-       Welcome()                      up
      up

There is always a secret: the one that an operator gave to all workers, or the store's own, which
the first worker of a pipeline makes and every worker reads before it listens (decision 41). A
`Hello` says which of the two its sender goes by, so that workers that cannot agree say why.

A side that finds that something does not fit says ``Refuse(reason)`` and closes. The listener
shows its proof only after the caller has shown one, and each digest says which side made it, so
that no side can send it back as its own. A digest covers both nonces: an overheard one is of no use
for another connection.

The secret proves that the peer belongs to the pipeline when a connection begins. It does not
encrypt, and a man in the middle can change what follows: TLS prevents both
(`millwheel.services.tcp`). A short secret can be guessed from an overheard proof, so a given one
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
"""A shorter secret is refused."""

Origin = Literal["given", "store"]
"""Where a worker's secret comes from."""

ORIGINS: dict[str, str] = {
    "given": "the secret it was given (--secret-file or MILLWHEEL_SECRET)",
    "store": "the secret that is kept in the store",
}
"""How messages call them."""

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
class Secret:
    """What all workers of a pipeline know, and no other process."""

    value: bytes = field(repr=False)
    origin: Origin

    def __post_init__(self) -> None:
        if len(self.value) < SECRET_BYTES:
            raise UsageError(
                f"the workers' shared secret has {len(self.value)} bytes; it can be guessed with "
                f"less than {SECRET_BYTES}: make one with python -c 'import secrets; "
                "print(secrets.token_hex(16))'"
            )


@dataclass(frozen=True)
class Identity:
    """What a worker is on the wire."""

    pipeline: str
    worker: str
    secret: Secret


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
        """The worker on the other side, once `done`."""

    @property
    def done(self) -> bool:
        """Whether everything fits, and the connection can be used."""
        return self._state == "done"

    def begin(self) -> list[Frame]:
        """What is said before anything is heard."""
        return [self._mine] if self.role == "caller" else []

    def receive(self, frame: Frame) -> list[Frame]:
        """Take the next frame; gives what is to be answered.

        Raises:
            PeerError: it does not fit; the text is for both sides.
        """
        wanted, after = STEPS[self.role][self._state]
        if not isinstance(frame, wanted):
            raise PeerError(f"{wanted.__name__} must come here, not {named(frame)}")
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
                f"a worker with version {hello.version} of the protocol met one with "
                f"{mine.version}; run the same millwheel everywhere"
            )
        if hello.pipeline != mine.pipeline:
            raise PeerError(f"this is not a worker of the pipeline {hello.pipeline!r}")
        if hello.worker == mine.worker:
            raise PeerError(f"both sides call themselves worker {hello.worker!r}")
        if self._expected is not None and hello.worker != self._expected:
            raise PeerError(f"worker {hello.worker!r} listens where {self._expected!r} was called")
        if hello.secret != mine.secret:
            theirs = ORIGINS.get(hello.secret, "a secret of an unknown kind")
            raise PeerError(
                f"the two workers go by different secrets: worker {mine.worker!r} by "
                f"{ORIGINS[mine.secret]}, worker {hello.worker!r} by {theirs}. Give all workers "
                "of the pipeline the same secret, or none of them"
            )
        if hello.incarnation != mine.incarnation:
            raise PeerError(
                "the database server has restarted or failed over, and one of the two workers has not "
                "noticed yet; it starts over as soon as it does"
            )

    def _verify(self, proof: Proof) -> None:
        other: Role = "caller" if self.role == "listener" else "listener"
        if not hmac.compare_digest(proof.digest, self._proof(other).digest):
            raise PeerError(
                "the shared secret of the two workers is not the same (each goes by "
                f"{ORIGINS[self._mine.secret]})"
            )

    def _proof(self, role: Role) -> Proof:
        """The proof that one side must send: an HMAC over both `Hello` frames."""
        caller, listener = self._mine, self._theirs
        if self.role == "listener":
            caller, listener = listener, caller
        said = msgspec.msgpack.encode((role, caller, listener))
        return Proof(hmac.digest(self._identity.secret.value, said, "sha256"))

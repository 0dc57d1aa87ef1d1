"""Signatures of request bodies, as webhooks have them."""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Callable, Mapping

from millwheel.errors import UsageError

Verify = Callable[[Mapping[str, str], bytes], bool]
"""Whether a request is genuine, given its headers (with names in lower case) and its body."""


def hmac_sha256(header: str, variable: str, *, prefix: str = "") -> Verify:
    """Requests carry the hexadecimal HMAC-SHA256 of their body in a header.

    ```python
    signed = hmac_sha256("X-Hub-Signature-256", "GITHUB_SECRET", prefix="sha256=")
    PUSHES = Stream("pushes", Order)
    pipeline.inject(PUSHES, Inbox(verify=signed))
    ```

    Args:
        header: the header's name.
        variable: the environment variable that has the secret, read at the first request.
        prefix: text before the digits in the header.
    """
    name = header.lower()

    def verify(headers: Mapping[str, str], body: bytes) -> bool:
        secret = os.environb.get(variable.encode())
        if not secret:
            raise UsageError(
                f"the variable {variable}, with the secret of header {header}, is not set"
            )
        expected = prefix + hmac.new(secret, body, hashlib.sha256).hexdigest()
        return hmac.compare_digest(expected.encode(), headers.get(name, "").encode())

    return verify

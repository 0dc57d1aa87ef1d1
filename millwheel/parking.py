"""`Park`: the key of a record that failed for good stands still (decision 60)."""

from __future__ import annotations

from dataclasses import dataclass

from millwheel.errors import GraphError

__all__ = ["Park"]


@dataclass(frozen=True)
class Park:
    """Parks the key of a failed record: its later records wait behind it, in order; other keys
    continue.

    ```python
    pipeline.add(AddUp(), ORDERS.by(customer), retries=3, on_error=Park(most_records=100))
    ```

    For ``on_error=`` of `Pipeline.add`; ``"park"`` is ``Park()``. See
    ``docs/why/mistakes-of-user-code.md``.

    Args:
        hold_watermark: hold the low watermark at the oldest record that waits, so that no window
            downstream closes without it. Otherwise the waiting records may produce late ones.
        most_records: stored records of a key. Further ones stay un-ACKed and slow their sender.
        most_bytes: bytes of their values.
        most_keys: parked keys in an interval of slots; one more ends the worker, as
            ``on_error="fail"`` does.

    Raises:
        GraphError: a limit is less than one.
    """

    hold_watermark: bool = False
    most_records: int = 1_000
    most_bytes: int = 64 << 20
    most_keys: int = 100

    def __post_init__(self) -> None:
        if min(self.most_records, self.most_bytes, self.most_keys) < 1:
            raise GraphError("Park: each limit must be at least 1")

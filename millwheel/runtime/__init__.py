"""The inside of one worker: rooms that import in one direction, put together by `engine.py`.

One record's way, room by room (more in docs/why/one-record.md)::

    source ──▶ interval ──▶ lane ──────────────────────────────▶ store
                  ▲           runner ─▶ user code ─▶ open commit ─▶ committer
                  │                                                    │
                  └── exchange ◀── acknowledge upstream, send downstream, publish watermarks

1. **Read.** `source/injector.py` reads rows of a partition; `source/row_sender.py` gives them
   timestamps and keys, and queues them, as columns of a `Chunk`.
2. **Queue.** `interval/interval.py` is a range of slots: its queue, logs, timers, watermarks and
   counters.
3. **Take and sort.** `lane/runner.py` takes a chunk: due timers first, then records.
   `lane/sorting.py` drops records that were seen (`seen/dedup.py`), loads states
   (`keys/key_state.py`) and groups records by key.
4. **Run.** `running/execution.py` runs user code, key after key; its decisions are data, an
   `Effects`. If code waits or raises, the rest of the chunk runs key by key.
5. **Commit.** `lane/open_commit.py` collects the effects; `lane/committer.py` waits for the commit
   before, and `lane/commit_builder.py` numbers productions and promises watermarks. The store makes
   all of it durable in one transaction, behind the fence (`store/postgres/lane.py`).
6. **Settle.** Only now the senders are acknowledged, the productions sent (`exchange/exchange.py`),
   and the low watermark published (`exchange/watermark_publisher.py`).

Beside the way:

* `modes/`: other productions than strong ones, behind the protocol of `interval/mode.py`; parked
  keys, behind that of `interval/turns.py`.
* `lane/recovery.py`: the one way back after a commit that failed (I12).
* `network/`: records for intervals of other workers, and from them.
* `ownership/`: which worker owns which interval: leases, claims, hand-overs, splits and merges.
* `upkeep/`: folding, buckets, figures, and the check whether all input is processed.
* `process/` and `environment.py`: clock, settings, store, log and tasks, for all rooms.
* `restarts.py`: starting over when the store has lost commits (I16).

The rooms import downwards only (`make lint`): engine > restarts > ownership | upkeep > network |
lane | source > modes > exchange | running > interval > routes > keys | seen > environment >
process. A lower room calls a higher one through a protocol of its own (`interval/ports.py`,
`interval/mode.py`), and the engine hands in the other side.
"""

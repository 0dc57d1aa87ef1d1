"""The inside of one worker: rooms that import in one direction, put together by `engine.py`.

One record's way, room by room::

    source ──▶ interval ──▶ lane ──────────────────────────────▶ store
                  ▲           runner ─▶ user code ─▶ open commit ─▶ committer
                  │                                                    │
                  └── exchange ◀── acknowledge upstream, send downstream, publish watermarks

Records travel as columns, in a `Chunk` (`millwheel/core/chunk.py`), which is taken apart where
records differ (decision 48).

1. **Read.** `source/injector.py` reads rows of a partition; `source/row_sender.py` gives them
   timestamps and keys, and queues them at the intervals of the keys' slots (`routes/routes.py`,
   `interval/step.py`). `source/pacing.py` limits the rows on their way.
2. **Queue.** `interval/interval.py` is a range of slots: its queue (`interval/intake.py`), its
   logs, timers, watermarks and counters, each in a module of that name.
3. **Take and sort.** `lane/runner.py` takes a chunk: due timers first, then records.
   `lane/sorting.py` drops records that were seen (`seen/dedup.py`), loads the states of the others
   (`keys/key_state.py`) and groups them by key.
4. **Run.** `running/execution.py` runs user code (`running/step_code.py`), key after key, in a task
   (`lane/worker_tasks.py`); its decisions are data, an `Effects`. If code waits or raises, the rest
   of the chunk runs key by key.
5. **Collect.** `lane/open_commit.py` adds the effects to the open commit.
6. **Commit.** `lane/committer.py` waits until the commit before is durable, lets queued records
   join, and hands `lane/commit_builder.py` the open commit: productions get numbers in their log
   (`interval/sent_log.py`), watermarks are promised. Then the store makes all of it durable in one
   transaction, behind the fence (`store/postgres/lane.py`).
7. **Settle.** Only now the committer acknowledges the senders and sends the productions
   (`exchange/exchange.py`), to the next interval's queue, and publishes the low watermark
   (`exchange/watermark_publisher.py`).

Beside the way:

* `modes/`: other productions than strong ones, behind the protocol of `interval/mode.py`: weak
  (sent before they are stored), trees (in no log), numbered bundles. Also parked keys, behind the
  protocol of `interval/turns.py`.
* `lane/recovery.py`: the one way back after a commit that failed (I12).
* `network/`: records for intervals of other workers, and from them.
* `ownership/`: which worker owns which interval: leases, claims, hand-overs, splits and merges.
* `upkeep/`: folding, buckets, figures, and the check whether all input is processed.
* `process/` and `environment.py`: clock, settings, store, log and tasks, for all rooms.
* `restarts.py`: starting over when the store has lost commits (I16).

The rooms import downwards only: engine > restarts > ownership | upkeep > network | lane | source >
modes > exchange | running > interval > routes > keys | seen > environment > process. `make lint`
checks it. A lower room calls a higher one through a protocol of its own (`interval/ports.py`,
`interval/mode.py`), and the engine hands in the other side.
"""

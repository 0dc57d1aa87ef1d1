"""What an engine has in its hands, in words: for tests that are stuck."""

from __future__ import annotations

from millwheel.runtime.engine import Engine
from millwheel.runtime.lane.committer import Committing


def dump(engine: Engine) -> str:
    """Intervals with their queues and logs, lanes, and what is on its way to others."""
    lines = [f"worker {engine.worker[:8]} lease {engine.lease.left:.1f}"]
    lines += [
        f"  lane: {[i.name for i in lane.intervals]} recovering "
        f"{lane.committer.state is Committing.RECOVERING} committing "
        f"{lane.committer.is_committing} open {[i.name for i in lane.commits.open.works]} hands "
        f"{len(lane.tasks)} running "
        f"{lane.runner._task is not None and not lane.runner._task.done()} woken "
        f"{lane.wake.is_set()} runner {lane.runner.state.value}"
        for lane in (engine.lane,)
    ]
    for i in engine.intervals:
        logs = [(log.id, log.first, log.next_seq, log.unacked) for log in i.logs]
        lines.append(
            f"  {i.name} id {i.id} input {i.watermarks.input} stored {i.watermarks.durable} intake "
            f"{len(i.intake)} leaving {i.leaving} dirty {i.dirty} logs {logs}"
        )
    for r in engine.remotes.remotes():
        streams = {
            log: (s.epoch, s.last, len(s.unacked), len(s._unsent), s.held, s.halted)
            for log, s in r.streams.items()
        }
        lines.append(f"  remote {r.step.name} {r.slots} id {r.id} of {r.owner} {streams}")
    if engine.courier is not None:
        taken = {
            name: (s.epoch, s.last, len(s.pending))
            for name, s in engine.courier.receiver._incoming.items()
        }
        lines.append(f"  refused {dict(engine.courier.refused)}, taken {taken}")
        for worker, link in engine.courier.peers._links.items():
            lines.append(f"  link to {worker[:8]} up {link.up} full {link.full}")
    return "\n".join(lines)

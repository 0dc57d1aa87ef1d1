"""Reports a device that has been silent for a minute of event time, and that it reports
again.

    echo '{"at": "2024-01-01T00:00:00Z", "device": "boiler"}' > beats.jsonl
    echo '{"at": "2024-01-01T00:01:40Z", "device": "boiler"}' >> beats.jsonl
    millwheel run examples.alerts_on_silence:pipeline --store .millwheel --keep-open
    millwheel sql 'SELECT * FROM alerts ORDER BY at' --store .millwheel -p alerts_on_silence
"""

from __future__ import annotations

from datetime import datetime, timedelta

from msgspec import Struct

from millwheel import Computation, Context, JsonLines, Pipeline, Record, Stream, Table, Timer


class Beat(Struct):
    at: datetime
    device: str


class Device(Struct):
    due: datetime | None = None
    is_silent: bool = False


class Alert(Struct):
    device: str
    at: datetime
    is_silent: bool


BEATS, ALERTS = Stream("beats", Beat), Stream("alerts", Alert)


class Watch(Computation[Beat, Device]):
    writes = (ALERTS,)
    longest_silence = timedelta(minutes=1)

    async def process_record(self, record: Record[Beat], ctx: Context[Device]) -> None:
        beat, device = record.value, ctx.state
        if device.due is not None and beat.at > device.due:
            if not device.is_silent:  # this beat has come before the timer
                ctx.produce(ALERTS, Alert(beat.device, device.due, True))
            ctx.produce(ALERTS, Alert(beat.device, beat.at, False))
            device.is_silent = False
        device.due = max(device.due or beat.at, beat.at + self.longest_silence)
        ctx.set_timer(device.due)  # in place of the one before

    async def process_timer(self, timer: Timer, ctx: Context[Device]) -> None:
        ctx.state.is_silent = True
        ctx.produce(ALERTS, Alert(str(ctx.key), timer.at, True))


pipeline = Pipeline("alerts_on_silence")
pipeline.inject(BEATS, JsonLines("beats.jsonl"), timestamp=lambda beat: beat.at)
pipeline.add(Watch(), BEATS.by(lambda beat: beat.device))
pipeline.sink(ALERTS, Table("alerts", Alert))

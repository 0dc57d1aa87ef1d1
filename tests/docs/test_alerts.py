"""Each alert of docs/deploy/alerts.yaml fires when it should, and none does while all is well."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from millwheel import JsonLines, Pipeline
from millwheel.services.metrics import exposition
from millwheel.services.observed import EngineObserved
from millwheel.services.store_endpoint import StoreLook, StoreMetrics
from millwheel.sources import Source
from millwheel.store.console.inspection import Operating
from tests.support.figures import some_figures, some_status
from tests.support.pipelines import QUICK, Tally
from tests.support.values import ITEMS, key_of, time_of
from tests.support.worlds import World

pytestmark = pytest.mark.process

ALERTS = Path(__file__).resolve().parents[2] / "docs" / "deploy" / "alerts.yaml"
RULES = [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]

Series = Mapping[str, str]

C = 'pipeline="p",computation="c"'
PROCESSES = {f"millwheel_records_processed_total{{{C}}}": "0+100x90"}

WELL: Series = {
    **PROCESSES,
    "millwheel_worker_info{}": "1x90",
    'millwheel_store_workers{pipeline="p"}': "2x90",
    'millwheel_store_complete{pipeline="p"}': "0x90",
    'millwheel_store_intervals_unowned{pipeline="p"}': "0x90",
    f"millwheel_store_watermark_held_seconds{{{C}}}": "3x90",
    'millwheel_store_oldest_snapshot_seconds{pipeline="p"}': "0 900 0x88",
    'millwheel_store_open_requests{pipeline="p"}': "0x90",
    f"millwheel_store_dead_letters_kept{{{C}}}": "0x90",
    f"millwheel_store_parked_keys{{{C}}}": "0x90",
    f'millwheel_watermark_seconds{{{C},kind="low"}}': "1e9+60x90",
    f"millwheel_oldest_key_at_work_seconds{{{C}}}": "5x90",
    f"millwheel_dead_letters_total{{{C}}}": "7x90",
    f"millwheel_bad_rows_total{{{C}}}": "7x90",
    f'millwheel_late_total{{{C},outcome="dropped"}}': "4x90",
    f"millwheel_unacked_records{{{C}}}": "10x90",
    f"millwheel_pending_cap_rows{{{C}}}": "64x90",
    f"millwheel_records_out_total{{{C}}}": "0+100x90",
    f"millwheel_source_lag_rows{{{C}}}": "100-1x90",
    'millwheel_source_lag_bytes{pipeline="p",computation="f"}': "0x90",
    'millwheel_commit_duration_seconds_bucket{pipeline="p",le="1.0"}': "0+100x90",
    'millwheel_commit_duration_seconds_bucket{pipeline="p",le="2.5"}': "0+100x90",
    'millwheel_commit_duration_seconds_bucket{pipeline="p",le="+Inf"}': "0+100x90",
    'millwheel_oldest_commit_seconds{pipeline="p"}': "0.01x90",
    'millwheel_loop_blocked_seconds_total{pipeline="p"}': "30x90",
    'millwheel_lease_seconds_left{pipeline="p"}': "4x90",
    'millwheel_fenced_total{pipeline="p"}': "3x90",
    'millwheel_certificate_not_after_seconds{pipeline="p",use="workers"}': "2e6x90",
}
"""What is scraped each minute while all is well."""

INCIDENTS: list[tuple[str, Series]] = [
    ("NoWorker", {"millwheel_worker_info{}": "1x10 _x80"}),
    ("NoWorkerLeft", {'millwheel_store_workers{pipeline="p"}': "2x10 0x80"}),
    ("IntervalsUnowned", {'millwheel_store_intervals_unowned{pipeline="p"}': "0x10 25x80"}),
    ("WatermarkHeld", {f"millwheel_store_watermark_held_seconds{{{C}}}": "0+60x90"}),
    ("OldSnapshot", {'millwheel_store_oldest_snapshot_seconds{pipeline="p"}': "0+60x90"}),
    ("RequestsWait", {'millwheel_store_open_requests{pipeline="p"}': "0x10 1x80"}),
    ("DeadLettersKept", {f"millwheel_store_dead_letters_kept{{{C}}}": "1x1600"}),
    ("KeyParked", {f"millwheel_store_parked_keys{{{C}}}": "0x10 2x80"}),
    ("EventTimeStandsStill", {f'millwheel_watermark_seconds{{{C},kind="low"}}': "1e9x90"}),
    ("KeyAtWork", {f"millwheel_oldest_key_at_work_seconds{{{C}}}": "0+60x90"}),
    ("DeadLetters", {f"millwheel_dead_letters_total{{{C}}}": "7x84 8x6"}),
    ("DeadLetters", {f"millwheel_bad_rows_total{{{C}}}": "7x84 8x6"}),
    ("SourceAtItsLimit", {f"millwheel_unacked_records{{{C}}}": "0x10 64x80"}),
    (
        "SourceAtItsLimit",
        {
            f"millwheel_unacked_records{{{C}}}": "0x10 60x80",
            f"millwheel_records_out_total{{{C}}}": "0+100x10 1000x80",
        },
    ),
    ("SourceBehind", {f"millwheel_source_lag_rows{{{C}}}": "0+10x90"}),
    ("SourceBehind", {'millwheel_source_lag_bytes{pipeline="p",computation="f"}': "0+999x90"}),
    (
        "SlowCommits",
        {'millwheel_commit_duration_seconds_bucket{pipeline="p",le="1.0"}': "0+90x90"},
    ),
    ("LateRecordsDropped", {f'millwheel_late_total{{{C},outcome="dropped"}}': "4x84 9x6"}),
    ("CommitHangs", {'millwheel_oldest_commit_seconds{pipeline="p"}': "0x85 5 20 35 50 65"}),
    ("LoopBlocked", {'millwheel_loop_blocked_seconds_total{pipeline="p"}': "0x80 9x10"}),
    ("LeaseEnds", {'millwheel_lease_seconds_left{pipeline="p"}': "4x80 0x10"}),
    ("IntervalsLost", {'millwheel_fenced_total{pipeline="p"}': "3x84 9x6"}),
    (
        "CertificateExpires",
        {'millwheel_certificate_not_after_seconds{pipeline="p",use="workers"}': "1.2e6x90"},
    ),
]
"""What is scraped in place of that during an incident, and the alert that fires at its end."""


@pytest.fixture
def promtool(tmp_path: Path) -> Any:
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("there is no promtool on this machine (Debian's package prometheus has it)")

    def firing(series: Series) -> set[str]:
        """The alerts that fire after an hour and a half, or after a day if there is a sample for
        it."""
        minutes = 1560 if any("x1600" in values for values in series.values()) else 90
        written = [
            {"series": name, "values": values.replace("x90", f"x{minutes}")}
            for name, values in series.items()
        ]
        # Expects what cannot be, so that the answer tells what there is.
        expects = {"expr": 'ALERTS{alertstate="firing"}', "eval_time": f"{minutes}m"}
        expects["exp_samples"] = [{"labels": "nothing", "value": 0}]  # type: ignore[assignment]
        test = {"interval": "1m", "input_series": written, "promql_expr_test": [expects]}
        content = {"rule_files": [str(ALERTS)], "evaluation_interval": "1m", "tests": [test]}
        (tmp_path / "rules.yaml").write_text(json.dumps(content))
        result = subprocess.run(
            [found, "test", "rules", tmp_path / "rules.yaml"], capture_output=True, text=True
        )
        told = result.stdout + result.stderr
        assert "exp:" in told, told
        return set(re.findall(r'alertname="Millwheel(\w+)"', told.partition("got:")[2]))

    return firing


def test_every_alert_has_an_incident() -> None:
    assert {f"Millwheel{name}" for name, _ in INCIDENTS} == {rule["alert"] for rule in RULES}


def test_no_alert_fires_while_all_is_well(promtool: Any) -> None:
    assert promtool(WELL) == set()


def test_a_source_that_is_read_just_below_its_limit_is_well(promtool: Any) -> None:
    assert promtool({**WELL, f"millwheel_unacked_records{{{C}}}": "60x90"}) == set()


@pytest.mark.parametrize(("alert", "series"), INCIDENTS, ids=[name for name, _ in INCIDENTS])
def test_an_alert_fires_in_its_incident_and_no_other_does(
    promtool: Any, alert: str, series: Series
) -> None:
    assert set(series) <= set(WELL)
    assert promtool({**WELL, **series}) == {alert}


def test_the_series_of_the_incidents_are_those_that_are_exported() -> None:
    lines, windows = some_figures().computations
    computations = (replace(lines, lag_rows=7, lag_bytes=70), windows)
    text, _ = exposition(replace(some_figures(), computations=computations))
    operating = Operating(2, {"state": 100}, {"state": 3}, 5.0)
    text += generate_latest(StoreMetrics([StoreLook(some_status("one"), operating)]))
    exported: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            exported.setdefault(sample.name, set()).update(sample.labels)
    for series in WELL:
        name, labels = series.rstrip("}").split("{")
        used = set(re.findall(r"(\w+)=", labels))
        assert used <= exported[name], series
        assert used == exported[name] or name == "millwheel_worker_info", series


@pytest.mark.parametrize("kind", ["followed file", "whole file", "followed directory"])
async def test_a_file_that_is_behind_is_seen_by_the_alert(tmp_path: Path, kind: str) -> None:
    """Its worker exports a figure that the rule asks for. (Other sources: their own tests of
    `lag`.)"""
    path = tmp_path / "items.jsonl"
    path.write_bytes(b'{"key":"k","number":1,"time":1}\n' * 5)
    sources: dict[str, Source] = {
        "followed file": JsonLines(path, follow=True, poll=0.01),
        "whole file": JsonLines(path),
        "followed directory": JsonLines(f"{tmp_path}/", follow=True, poll=0.01),
    }
    pipeline = Pipeline("world", settings=QUICK)
    pipeline.inject(ITEMS, sources[kind], timestamp=time_of)
    pipeline.add(Tally(), ITEMS.by(key_of))
    world = World(pipeline)
    observed = EngineObserved(await world.start())
    (rule,) = (rule for rule in RULES if rule["alert"] == "MillwheelSourceBehind")
    asked = set(re.findall(r"millwheel_\w+", rule["expr"]))

    def exported() -> set[str]:
        families = text_string_to_metric_families(exposition(observed.figures())[0].decode())
        return {
            sample.name
            for family in families
            for sample in family.samples
            if sample.labels.get("computation") == "items_injector"
        }

    async with asyncio.timeout(60):
        while not asked & exported():  # a directory is looked into first
            world.clock.advance(0.05)
            await asyncio.sleep(0.001)
    await world.close()

"""The bench: reports from figures of before, what other engines are measured with, what is
right."""

from __future__ import annotations

import json
import py_compile
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from bench import __main__ as command
from bench.growth import BARS, keys
from bench.parts import PARTS
from bench.peers import answers, side_by_side
from bench.peers.catalogue import MILLWHEEL, PEERS
from bench.peers.environments import HERE
from bench.peers.running import Run
from bench.report import charts, writing
from bench.snapshot import recovered
from bench.workload import Balance, Payment, payments, payments_file

PROGRAMS = HERE / "programs"
MACHINE = {
    "cores": 2, "machine": "x86_64", "system": "Linux", "python": "3.11.7", "postgres": "18.6",
    "load_before": 0.25,
}  # fmt: skip
RATE = {
    "ceiling": {"500": {"rates": {"1": 100_000.0}, "connections": 1, "rate": 100_000.0}},
    "pairs": [
        {
            "raw": {"rate": 100_000.0, "python_us": 2.5, "postgres_us": 9.5, "cpu_us": 12.0},
            "engine": {"rate": 51_200.0, "python_us": 20.0, "postgres_us": 12.0, "cpu_us": 32.0},
        }
    ],
    "ratio": 0.512, "cpu": 2.67, "ratio_rows": 0.6, "cpu_rows": 2.1, "layout": 1.1, "stages": 1.0,
}  # fmt: skip


def peer_line(**changes: Any) -> dict[str, Any]:
    """A line of the table of peers."""
    return {
        "peer": "Bytewax", "setting": "default", "durability": "snapshot every 10 s",
        "between": "files",
        "records": 270_000, "rate": 90_000.0, "ratio": 1.8, "cpu_micros": 11.0, "megabytes": 44.0,
        "millwheel": 50_000.0, "millwheel_cpu_micros": 33.0, "pairs": [[90_000.0, 50_000.0]],
    } | changes  # fmt: skip


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    """A file of figures, as a run leaves it."""
    points = [
        {"way": way, "keys": n, "rate": 60_000.0 - n / 100, "raw_reads": 90_000.0,
         "peak_megabytes": 70.0, "cache_megabytes": 1.0}
        for n, way in product((1_000, 10_000, 1_000_000), ("zipf", "uniform"))
    ]  # fmt: skip
    curve = {"rate": 50_000.0, "peak_megabytes": 80.0}
    points[-2]["beside"] = points[-1]["beside"] = 60_000.0
    growth: dict[str, list[dict[str, Any]]] = {
        "keys": points,
        "sizes": [{"bytes": n, "megabytes_per_second": 1.0, **curve} for n in (10, 1_000)],
        "history": [
            {"ids": n, "maybes": 0.0, "filters_seconds": 1.0, "beside": 60_000.0, **curve}
            for n in (0, 1_000_000)
        ],
        "timers": [{"timers": n, "start_seconds": 0.1, **curve} for n in (0, 10_000)],
        "depth": [{"stages": n, "hops": 50_000.0, **curve} for n in (1, 10)],
        "workers": [
            {"workers": n, "python_cores": 1.0, "postgres_cores": 0.5, **curve} for n in (1, 2)
        ],
    }
    curves = {
        f"growth-{name}": {"points": found, "bars": BARS[name](found) if name in BARS else []}
        for name, found in growth.items()
    }
    path = tmp_path / "20240101-000000.json"
    path.write_text(
        json.dumps(
            {
                "command": "python -m bench rate growth peers",
                "machine": MACHINE,
                "rate": RATE,
                **curves,
                "peers": {
                    "rates": [
                        peer_line(),
                        peer_line(peer="Spark", setting="batch", ratio=0.05, cpu_micros=1300.0),
                        {
                            "peer": "DBOS",
                            "setting": "async",
                            "durability": "",
                            "failed": "Failed: x",
                        },
                    ],
                    "not_run": "Faust needs a Kafka broker: not run",
                    "latency_on_topics": {
                        "load": 50.0,
                        "medians": {
                            "a transaction of one record": dict.fromkeys(
                                ("p50_ms", "p95_ms", "p99_ms"), 10.0
                            ),
                            "millwheel": dict.fromkeys(("p50_ms", "p95_ms", "p99_ms"), 25.0),
                        },
                        "failed": {},
                    },
                },
            }
        )
    )
    return path


def test_a_report_tells_ratios_first_and_who_wins(measured: Path, tmp_path: Path) -> None:
    directory = tmp_path / "report"
    text = writing.write([measured], directory).read_text()
    ratios, figures = text.index("## Ratios"), text.index("## Full load")
    assert ratios < text.index("| engine / raw SQL, bundles of 500 | 0.51 |") < figures
    assert "`python -m bench rate`" in text
    assert "2 cores" in text
    assert "**Bytewax, default is faster than millwheel**: 1.80 times its rate" in text
    assert "**Bytewax, default needs less CPU than millwheel**: 0.33" in text
    assert "Spark, batch is faster" not in text
    assert "DBOS, async did not run: Failed: x" in text
    assert "Faust needs a Kafka broker: not run" in text
    assert "written to readable, millwheel / a transaction of one record | 2.50 |" in text
    assert (directory / measured.name).read_bytes() == measured.read_bytes()
    for name in ("peers", "growth-keys-rate", "growth-history-memory"):
        assert f"({name}.png)" in text
        assert (directory / f"{name}.png").read_bytes().startswith(b"\x89PNG")


@pytest.fixture
def no_charts(monkeypatch: pytest.MonkeyPatch) -> None:
    """As without matplotlib: drawing takes seconds."""
    monkeypatch.setattr(charts, "can_draw", lambda: False)


@pytest.mark.usefixtures("no_charts")
def test_a_report_without_matplotlib_says_so(measured: Path, tmp_path: Path) -> None:
    text = writing.write([measured], tmp_path / "report").read_text()
    assert writing.NO_CHARTS in text
    assert ".png" not in text


@pytest.mark.usefixtures("no_charts")
def test_of_a_part_measured_twice_the_last_counts(measured: Path, tmp_path: Path) -> None:
    later = tmp_path / "20240102-000000.json"
    later.write_text(
        json.dumps({"machine": MACHINE, "rate": RATE | {"ratio": 0.777}, "quick": True})
    )
    text = writing.write([measured, later], tmp_path / "report").read_text()
    assert "| engine / raw SQL, bundles of 500 | 0.78 |" in text
    assert "0.51" not in text
    assert "`python -m bench rate --quick`" in text
    assert "`python -m bench peers`" in text


@pytest.mark.usefixtures("no_charts")
def test_figures_of_an_older_form_are_left_out_with_a_word(measured: Path, tmp_path: Path) -> None:
    older = tmp_path / "20230101-000000.json"
    older.write_text(json.dumps({"machine": MACHINE, "snapshot": {"ratio": 1.0}}))
    text = writing.write([older, measured], tmp_path / "report").read_text()
    assert "snapshot: 20230101-000000.json has an outdated format" in text
    assert "| engine / raw SQL, bundles of 500 | 0.51 |" in text


def test_every_part_has_a_section() -> None:
    assert writing.SECTIONS.keys() == PARTS.keys()


def test_unknown_parts_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["nonsense"], ["report", "rate"]):
        with pytest.raises(SystemExit):
            command.parsed(arguments)
    assert "there is no part nonsense" in capsys.readouterr().err


# -- peers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", sorted(PROGRAMS.glob("*.py")), ids=lambda path: path.stem)
def test_programs_of_peers_can_be_read(path: Path, tmp_path: Path) -> None:
    py_compile.compile(str(path), cfile=str(tmp_path / "out.pyc"), doraise=True)


@pytest.mark.parametrize("peer", [MILLWHEEL, *PEERS], ids=lambda peer: peer.label)
def test_every_peer_has_its_program_setting_and_pinned_packages(peer: Any) -> None:
    program = (PROGRAMS / f"on_{peer.program}.py").read_text()
    assert f"`{peer.setting}`" in program
    if peer.environment is not None:
        lines = (HERE / "requirements" / f"{peer.environment}.txt").read_text().split()
        assert lines
        assert all("==" in line for line in lines)


def right_answers(path: Path, count: int) -> Iterator[Balance]:
    """A balance for each payment."""
    kept: dict[int, tuple[int, int]] = {}
    for payment in payments(count):
        number, total = kept.get(payment.account, (0, 0))
        kept[payment.account] = number + 1, total + payment.amount
        yield Balance(payment.account, number + 1, total + payment.amount)


def test_expected_balances_are_those_of_the_payments(tmp_path: Path) -> None:
    payments_file(tmp_path, 30_000)
    right = answers.expected(tmp_path / "payments-30000.jsonl", 30_000)
    made: list[Payment] = list(payments(30_000))
    assert sum(number for number, _ in right.values()) == 30_000
    assert sum(total for _, total in right.values()) == sum(p.amount for p in made)
    first = answers.expected(tmp_path / "payments-30000.jsonl", 10)
    assert sum(total for _, total in first.values()) == sum(p.amount for p in made[:10])
    answers.check(right_answers(tmp_path, 30_000), right)
    answers.check(reversed(list(right_answers(tmp_path, 30_000))), right)


@pytest.mark.parametrize("what", ["lost", "twice", "wrong", "stranger"])
def test_a_wrong_answer_is_noticed(what: str, tmp_path: Path) -> None:
    payments_file(tmp_path, 25_000)
    right = answers.expected(tmp_path / "payments-25000.jsonl", 25_000)
    balances = list(right_answers(tmp_path, 25_000))
    last = balances[-1]
    match what:
        case "lost":
            balances.pop(12_000)
        case "twice":
            balances.append(Balance(last.account, last.payments + 1, last.total + 5))
        case "wrong":
            balances[-1] = Balance(last.account, last.payments, last.total + 1)
        case "stranger":
            balances.append(Balance(1_000_000, 1, 5))
    with pytest.raises(answers.WrongAnswer):
        answers.check(balances, right)


def test_balances_are_read_from_what_is_final(tmp_path: Path) -> None:
    directory = tmp_path / "balances" / "2024-01-01--00"
    directory.mkdir(parents=True)
    line = '{"account":%d,"payments":1,"total":5}\n'
    (directory / "part-0-0").write_text(line % 1)
    (directory / ".part-0-1.inprogress").write_text(line % 2)
    (directory / ".part-0-0.crc").write_bytes(b"\x00")
    assert answers.read(tmp_path) == [Balance(1, 1, 5)]


def test_last_balances_are_checked(tmp_path: Path) -> None:
    (tmp_path / "finals.jsonl").write_text('{"account":1,"payments":2,"total":5}\n')
    finals = answers.read_finals(tmp_path)
    answers.check_finals(finals, {1: (2, 5)})
    for wrong in ({1: (2, 6)}, {1: (2, 5), 2: (1, 1)}, {}):
        with pytest.raises(answers.WrongAnswer):
            answers.check_finals(finals, wrong)


def test_a_ratio_is_that_of_the_pairs() -> None:
    def a_run(rate: float) -> Run:
        return Run(1000, 1000 / rate, 0.01, 50.0)

    pairs = [(a_run(20.0), a_run(10.0)), (a_run(60.0), a_run(20.0)), (a_run(50.0), a_run(100.0))]
    assert side_by_side.line(PEERS[0], pairs)["ratio"] == pytest.approx(2.0)


def test_peers_of_kafka_run_only_with_a_broker() -> None:
    programs = {peer.program for peer in side_by_side.chosen(None, None)}
    assert {"bytewax", "spark", "dbos", "flink"} <= programs
    assert not {"quix", "faust"} & programs
    assert {"quix", "faust"} <= {peer.program for peer in side_by_side.chosen(None, "h:1")}
    (one,) = side_by_side.chosen(["dbos-queue"], None)
    assert one.setting == "queue"


# -- what is drawn, and when it is over --------------------------------------------------------


def test_frequent_keys_come_as_often_as_zipf_says() -> None:
    drawn = list(keys.draw("zipf", 10_000, 50_000))
    first = drawn.count(0) / len(drawn)
    tenth = drawn.count(9 * keys.STRIDE % 10_000) / len(drawn)
    assert first == pytest.approx(0.075, rel=0.1)
    assert 6 < first / tenth < 9.5  # 1/k would be 10; ln(1 + 1/k), which is drawn, gives 7.3
    assert len({key * keys.STRIDE % 10_000 for key in range(10_000)}) == 10_000


def test_a_rate_is_back_when_a_window_is_as_fast_as_before() -> None:
    assert recovered([5.0, 5.0, 10.0, 10.0, 10.0, 10.0, 10.0, 10.0], 10.0) == 2.0
    assert recovered([9.0] * 10, 10.0) is None

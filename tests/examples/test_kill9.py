"""The proof of the README: a pipeline that is killed gives the result of arithmetic."""

from __future__ import annotations

import subprocess
import sys

import pytest

from examples import kill9
from tests.support.typed_commands import ROOT


@pytest.mark.pages
def test_a_killed_pipeline_equals_arithmetic() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "examples.kill9", "--kills", "3", "--payments", "200000"],
        cwd=ROOT, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("kill -9") == 3
    assert done.stdout.endswith("every account is equal\n")


def test_a_wrong_result_is_seen() -> None:
    truth = {1: (2, 30), 2: (1, 10)}
    assert kill9.compare(truth, {1: (2, 30), 2: (1, 10)}) == 0
    assert kill9.compare(truth, {1: (3, 40), 2: (1, 10)}) == 1
    assert kill9.compare(truth, {1: (2, 30)}) == 1

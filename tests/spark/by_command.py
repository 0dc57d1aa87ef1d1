"""Runs commands in this process."""

from __future__ import annotations

import sys

import pytest

from millwheel.cli.main import main


def by_command(monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    monkeypatch.setattr(sys, "argv", ["millwheel", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code

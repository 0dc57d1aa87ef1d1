"""The packages of this checkout, built once."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from tests.support.packages import build, copy_source


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_source(tmp_path_factory.mktemp("source") / "millwheel")


@pytest.fixture(scope="session")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    return zipfile.ZipFile(build("wheel", source, tmp_path_factory.mktemp("wheel")))


@pytest.fixture(scope="session")
def wheel_file(wheel: zipfile.ZipFile) -> Path:
    assert wheel.filename is not None
    return Path(wheel.filename)


@pytest.fixture(scope="session")
def sdist(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("sdist", source, tmp_path_factory.mktemp("sdist"))

"""The packages that Spark needs, looked for before anything imports them."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence

from millwheel.core.distribution import install
from millwheel.errors import UsageError

PACKAGES = ("pyspark", "pandas", "pyarrow")
CONNECT_PACKAGES = ("grpc", "grpc_status", "google.protobuf")


def require_packages(packages: Sequence[str] = PACKAGES, *, extra: str = "spark") -> None:
    """`UsageError` names the `extra` of millwheel that has the package."""
    for package in packages:
        if not _is_installed(package):
            raise UsageError(
                f"Spark needs the package {package}, which is not installed: {install(extra)}"
            )


def _is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # its parent
        return False

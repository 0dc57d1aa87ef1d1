"""Certificates that a test signs."""

from __future__ import annotations

import subprocess
from pathlib import Path


class Authority:
    """Signs certificates with the openssl of this machine."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.name = name
        self._openssl(
            "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
            "-keyout", f"{name}.key", "-out", f"{name}.pem", "-days", "2", "-subj", f"/CN={name}",
        )  # fmt: skip

    def _openssl(self, *words: str) -> None:
        subprocess.run(["openssl", *words], cwd=self.folder, check=True, capture_output=True)

    def certificate(self, name: str, subject: str, days: int = 2) -> tuple[Path, Path]:
        """A certificate and its key, for a host; it expires in so many days, or has expired."""
        self._openssl(
            "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
            "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}",
        )  # fmt: skip
        (self.folder / f"{name}.ext").write_text(f"subjectAltName={subject}\n")
        self._openssl(
            "x509", "-req", "-in", f"{name}.csr", "-CA", f"{self.name}.pem", "-days", str(days),
            "-CAkey", f"{self.name}.key", "-CAcreateserial", "-out", f"{name}.pem",
            "-extfile", f"{name}.ext",
        )  # fmt: skip
        return self.folder / f"{name}.pem", self.folder / f"{name}.key"

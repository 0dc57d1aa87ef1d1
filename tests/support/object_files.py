"""An object store in memory, with the methods of fsspec that savepoints use: an object is there
once it is closed."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any


class ObjectFiles:
    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.fails_at: Callable[[str], bool] = lambda _: False
        """Whether an object of that name cannot be written."""

    def find(self, path: str) -> list[str]:
        return [name for name in self.objects if name.startswith(f"{path}/")]

    def makedirs(self, path: str, exist_ok: bool) -> None:
        assert exist_ok

    def exists(self, path: str) -> bool:
        return path in self.objects

    def size(self, path: str) -> int:
        return len(self.objects[path])

    def open(self, path: str, mode: str) -> io.BytesIO:
        return io.BytesIO(self.objects[path]) if mode == "rb" else _Upload(self, path)

    def pipe_file(self, path: str, data: bytes) -> None:
        if self.fails_at(path):
            raise ConnectionError(f"{path}: the object store went away")
        self.objects[path] = data

    def rm(self, path: str, recursive: bool) -> None:
        assert recursive
        for name in self.find(path):
            del self.objects[name]


class _Upload(io.BytesIO):
    def __init__(self, files: ObjectFiles, path: str) -> None:
        super().__init__()
        self._files, self._path = files, path

    def close(self) -> Any:
        if not self.closed:
            data = self.getvalue()
            super().close()
            self._files.pipe_file(self._path, data)

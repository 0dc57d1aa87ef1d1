"""Loads the pipeline of an argument MODULE:PIPELINE, or of a file of SQL."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

from millwheel.cli.keyword_advice import keyword_advice
from millwheel.cli.sql_files import SUFFIX, pipeline_of
from millwheel.core.modules import modules_beside
from millwheel.core.suggestion import with_suggestion
from millwheel.errors import MillwheelError, UsageError, UserCodeError
from millwheel.pipeline import Pipeline


def is_target(text: str) -> bool:
    """Whether an argument says how to load a pipeline; otherwise it is a name."""
    return ":" in text or text.endswith(SUFFIX)


def load_pipeline(target: str, name: str | None = None) -> Pipeline:
    """Import MODULE:PIPELINE, also from the current directory, and check its graph.

    PIPELINE is a `Pipeline`, or a function without arguments that returns one. A target that ends
    with ``.sql`` is a file.

    Args:
        name: the name to run it under; None: its own.
    """
    pipeline = pipeline_of(Path(target)) if target.endswith(SUFFIX) else _imported(target)
    if name is not None:
        pipeline = pipeline.named(name)
    pipeline.graph()
    return pipeline


def _imported(target: str) -> Pipeline:
    module_name, name = parts_of(target)
    module = _load_module(module_name, target)
    if not hasattr(module, name):
        message = f"module {module_name!r} has no {name!r}. {_offer(module)}"
        raise UsageError(with_suggestion(message, name, pipelines_of(module)))
    return _make(getattr(module, name), module, target)


def parts_of(target: str) -> tuple[str, str]:
    """The module and the pipeline of MODULE:PIPELINE.

    Raises:
        UsageError: it is not of that form.
    """
    module_name, colon, name = target.partition(":")
    if not (module_name and colon and name):
        raise UsageError(
            f"{target!r} is not of the form MODULE:PIPELINE, as in wordcount:pipeline, and no file "
            "of SQL"
        )
    return module_name, name


def _load_module(name: str, target: str) -> ModuleType:
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if name == missing or name.startswith(f"{missing}."):
            hint = ""
            if name.endswith(".py") or "/" in name:
                plain = name.removesuffix(".py").strip("./").replace("/", ".")
                hint = f". Give the name of the module, not of its file: {plain}:…"
            message = (
                f"there is no module {missing!r} in {here} or among the installed packages "
                f"(needed for {target!r}){hint}"
            )
            raise UsageError(with_suggestion(message, missing, modules_beside(missing))) from error
        raise UserCodeError(f"importing {name!r} failed: {error}") from error
    except MillwheelError:
        raise
    except (Exception, SystemExit) as error:
        raise UserCodeError(f"importing {name!r} failed: {_error_text(error)}") from error


def _make(found: Any, module: ModuleType, target: str) -> Pipeline:
    if isinstance(found, Pipeline):
        return found
    if not callable(found):
        raise UsageError(
            f"{target!r} is a {type(found).__name__}, not a Pipeline. {_offer(module)}"
        )
    try:
        inspect.signature(found).bind()
    except TypeError as error:
        raise UsageError(
            f"{target!r} cannot be called without arguments ({error}), so it cannot return a "
            f"Pipeline. {_offer(module)}"
        ) from error
    except ValueError:  # a builtin without a signature: the call below shows whether it works
        pass
    try:
        made = found()
    except MillwheelError:
        raise
    except Exception as error:
        raise UserCodeError(f"{target} failed: {_error_text(error)}") from error
    if not isinstance(made, Pipeline):
        raise UsageError(
            f"{target!r} returns a {type(made).__name__}, not a Pipeline. {_offer(module)}"
        )
    return made


def _offer(module: ModuleType) -> str:
    return f"Pipelines in this module: {', '.join(pipelines_of(module)) or 'none'}"


def pipelines_of(module: ModuleType) -> list[str]:
    """Names of pipelines, and of functions that are annotated to return one."""
    return [
        name
        for name, value in vars(module).items()
        if isinstance(value, Pipeline)
        or (
            inspect.isfunction(value)
            and value.__annotations__.get("return") in (Pipeline, "Pipeline")
        )
    ]


def _error_text(error: BaseException) -> str:
    """The last line of a traceback; a SyntaxError with file and line."""
    text = "".join(traceback.format_exception_only(error)).strip()
    advice = keyword_advice(error) if isinstance(error, TypeError) else ""
    return f"{text}. {advice}" if advice else text

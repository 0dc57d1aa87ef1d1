"""``millwheel plan`` and ``millwheel rollback``: the changes of a deploy, and the way back."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import typer

from millwheel.cli.command import command
from millwheel.cli.opened_store import opened
from millwheel.cli.options import CommonOptions, Json, Target
from millwheel.cli.printing import print_json, tell
from millwheel.cli.target import load_pipeline
from millwheel.errors import DeployRefused
from millwheel.store.console.migrate import require_version, schema_version
from millwheel.store.port.change import CodeChange, lines_of
from millwheel.store.port.deploy import Plan

app = typer.Typer()


@command(
    app,
    examples=[
        "millwheel plan zeitgeist:pipeline",
        "millwheel plan zeitgeist:pipeline --json",
    ],
)
def plan(target: Target, as_json: Json = False, *, common: CommonOptions) -> None:
    """Show what a deploy of this code would change.

    Each difference from the deployed code is shown with its result for stored data. Nothing is
    changed, and nothing waits. Workers check the same when they start. The exit code is 4 if they
    would refuse the code, else 0.
    """
    pipeline = load_pipeline(target)
    with opened(common) as presence:
        if schema_version(presence.url, pipeline.name) is None:
            found = Plan(None, ())
        else:
            from millwheel.services import planning  # the engine: slow to import

            require_version(presence.url, pipeline.name, address=common.address, migrate_now=False)
            found = planning.plan(pipeline, presence.url)
    if as_json:
        print_json(
            {
                "pipeline": pipeline.name,
                "deployed": found.deployed,
                "former": found.older,
                "refused": found.is_refused,
                "changes": [change.as_json() for change in found.changes],
                "in_the_way": [
                    {
                        "computation": old.computation,
                        "key": msgspec.Raw(old.key),
                        "entry": old.entry,
                        "version": old.version,
                    }
                    for old in found.in_the_way
                ],
            }
        )
    else:
        tell(_heading(pipeline.name, found))
        _print_changes(found.changes)
        for old in found.in_the_way:
            tell(
                f"  in the way: state of {old.computation!r}, key {old.key.decode()}"
                f"{old.entry and ', ' + old.entry}, is of version {old.version}",
                "error",
            )
    if found.is_refused:
        raise DeployRefused(f"this code cannot be deployed to pipeline {pipeline.name!r}")


@command(
    app,
    examples=[
        "millwheel rollback zeitgeist:pipeline",
    ],
)
def rollback(target: Target, as_json: Json = False, *, common: CommonOptions) -> None:
    """Deploy the code of a former generation again.

    Workers may run, or not; workers of this code can start afterwards. Without this command, code
    of a former generation is that of a worker that starts again during a deploy, and never undoes
    the deploy.
    """
    pipeline = load_pipeline(target)
    with opened(common) as presence:
        from millwheel.services import planning  # the engine: slow to import

        deployment = planning.roll_back(pipeline, presence.url)
    if as_json:
        print_json(
            {
                "pipeline": pipeline.name,
                "deployed": deployment.generation,
                "changes": [change.as_json() for change in deployment.changes],
            }
        )
        return
    tell(f"pipeline {pipeline.name!r}: generation {deployment.generation} is deployed")
    _print_changes(deployment.changes)


def _heading(name: str, found: Plan) -> str:
    if found.deployed is None:
        return f"pipeline {name!r} is not deployed: this code begins its first generation"
    deployed = f"pipeline {name!r}, generation {found.deployed}"
    if not found.changes:
        return f"{deployed}: this code changes nothing that is stored"
    if found.older is not None:
        return f"{deployed}: this code is generation {found.older}, and differs in"
    return f"{deployed}: this code differs in"


def _print_changes(changes: Sequence[CodeChange]) -> None:
    for change in changes:
        head, *others = lines_of(change)
        tell(f"  {head}", "error" if change.refuses else None)
        for line in others:
            tell(f"  {line}")

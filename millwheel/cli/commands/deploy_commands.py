"""``millwheel plan`` and ``millwheel rollback``: the changes of a deploy, and the way back."""

from __future__ import annotations

import msgspec
import typer

from millwheel.cli.command import command
from millwheel.cli.opened_store import opened
from millwheel.cli.options import CodeOptions, CommonOptions, Json
from millwheel.cli.plan_text import change_lines, plan_lines
from millwheel.cli.printing import print_json, tell
from millwheel.errors import DeployRefused
from millwheel.store.console.migrate import require_version, schema_version
from millwheel.store.port.deploy import Plan

app = typer.Typer()


@command(
    app,
    examples=[
        "millwheel plan zeitgeist:pipeline",
        "millwheel plan zeitgeist:pipeline --json",
    ],
)
def plan(code: CodeOptions, as_json: Json = False, *, common: CommonOptions) -> None:
    """Show what a deploy of this code would change.

    Each difference from the deployed code is shown with its result for stored data. Nothing is
    changed, and nothing waits. Workers check the same when they start. The exit code is 4 if they
    would refuse the code, else 0.
    """
    pipeline = code.load()
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
        for line, style in plan_lines(pipeline.name, found):
            tell(line, style)
    if found.is_refused:
        raise DeployRefused(f"this code cannot be deployed to pipeline {pipeline.name!r}")


@command(
    app,
    examples=[
        "millwheel rollback zeitgeist:pipeline",
    ],
)
def rollback(code: CodeOptions, as_json: Json = False, *, common: CommonOptions) -> None:
    """Deploy the code of a former generation again.

    Workers may run, or not; workers of this code can start afterwards. Without this command, code
    of a former generation is that of a worker that starts again during a deploy, and never undoes
    the deploy.
    """
    pipeline = code.load()
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
    for line, style in change_lines(deployment.changes):
        tell(line, style)

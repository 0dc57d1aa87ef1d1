"""The README's code runs, and its test passes."""

import re
import sys
import types
from pathlib import Path

README = Path(__file__).parent.parent / "README.md"


async def test_the_code_of_the_readme_runs_and_its_test_passes() -> None:
    blocks = re.findall(r"```python\n(.*?)```", README.read_text("utf-8"), re.DOTALL)
    assert len(blocks) == 3
    module = types.ModuleType("readme")
    sys.modules["readme"] = module
    try:
        for block in blocks:
            exec(compile(block, str(README), "exec"), module.__dict__)
        await module.test_a_spike_is_told_once()
        assert {"views", "clicks", "seen"} <= set(module.shop.graph().streams)
    finally:
        del sys.modules["readme"]

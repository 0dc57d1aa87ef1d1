"""*Where does it stand?* The steps of the graph, with rate, waiting records and lag."""

from __future__ import annotations

from millwheel.store.console.inspection import Inspection, PipelineStatus
from millwheel.ui.page import NoFilters, Page


def look(inspection: Inspection, pipeline: str, filters: NoFilters) -> PipelineStatus:
    return inspection.status(pipeline)


STEPS: Page[NoFilters] = Page("", "Steps", "Where does it stand?", "steps.html", look)

"""One report of what was measured: Markdown, charts as PNG, and the raw figures beside."""

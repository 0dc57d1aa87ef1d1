"""A report of the results: Markdown, charts as PNG, and the raw figures."""

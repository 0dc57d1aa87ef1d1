"""The pictures of the docs: SVG files in ``docs/pictures``."""

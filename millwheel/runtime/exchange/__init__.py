"""Between intervals: where records go, their acknowledgements, and low watermarks."""

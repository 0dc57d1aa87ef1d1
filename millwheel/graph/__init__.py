"""The graph of a pipeline, which is known, checked and printable before anything starts."""

"""Copies of pipelines: savepoints and forks (decision 86)."""

"""Followed files against a model: histories drawn from seeds, of everything that may happen to a
file.

`logs` is a followed path with its rotated files, `folders` a directory in which files appear.
`histories` draws the events, runs them on real files, and makes a failing history shorter; `python
-m tests.files` runs many seeds.
"""

"""Periodic chores of a worker: folds, buckets, figures."""

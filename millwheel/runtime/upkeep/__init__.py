"""Chores beside the lane: folds, buckets, figures."""

-- The lowest generation that may still own an interval.
SELECT min(generation) FROM {key_interval}

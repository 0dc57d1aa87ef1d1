-- One entry of one key.
SELECT value::text, version FROM {state}
WHERE slot = %(slot)s AND computation = %(computation)s AND key = %(key)s AND entry = %(entry)s

-- Whether a live worker has the interval of a slot.
SELECT EXISTS (
    SELECT FROM {key_interval} AS k
    JOIN {computation} AS c ON c.id = k.computation
    JOIN {worker} AS w ON w.id = k.owner AND NOT w.stopped AND w.lease_until > now()
    WHERE c.name = %(computation)s AND c.removed_at IS NULL
      AND k.slot_from <= %(slot)s AND %(slot)s < k.slot_to
)

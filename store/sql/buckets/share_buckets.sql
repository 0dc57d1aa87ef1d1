-- Waits until no session opens or closes a bucket. A later close reads the clock later, so the buckets read
-- now are final for a while (decision 24). Does not wait for other readers, or for drops.
LOCK TABLE {bucket} IN ROW SHARE MODE

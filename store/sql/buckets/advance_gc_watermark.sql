-- The GC watermark never goes back, and is durable before a bucket is dropped (I9).
UPDATE {pipeline} SET gc_watermark = %(floor)s WHERE gc_watermark < %(floor)s

-- Lets injectors rest or read, those named or all of them; gives those where that changed.
UPDATE {computation}
SET paused = %(paused)s
WHERE kind = 'injector' AND paused <> %(paused)s
    AND (%(names)s::text[] IS NULL OR name = ANY(%(names)s::text[]))
RETURNING name

-- Pauses or resumes injectors, the named ones or all of them; gives the names of changed ones.
UPDATE {computation}
SET paused = %(paused)s
WHERE kind = 'injector' AND paused <> %(paused)s
    AND (%(names)s::text[] IS NULL OR name = ANY(%(names)s::text[]))
RETURNING name

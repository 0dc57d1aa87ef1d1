-- Whether the session has the setting that it was started with: a connection pooler drops it.
SELECT current_setting('millwheel.session', true) = 'own'

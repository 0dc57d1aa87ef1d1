"""``millwheel dev``: a pipeline that starts again whenever its code changes.

::

    dev_session (this process)                     version_process (one for each version)
      changes: watches files   ── SIGTERM ──>      imports, plans, deploys, runs
      new rows of tables       <── reports ──      files that it has imported, plan, deliveries
      keyboard: answers        ── "deploy" ─>      stops when this pipe closes
"""

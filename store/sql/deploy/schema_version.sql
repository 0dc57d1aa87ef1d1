-- The Alembic revision that a pipeline's schema is at.
SELECT version_num FROM {alembic_version}

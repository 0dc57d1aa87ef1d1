"""For revisions: the schema of the pipeline that is migrated."""

import sqlalchemy as sa
from alembic import op


def within(schema: str, statement: str) -> None:
    """Run a statement that names tables without their schema."""
    connection = op.get_bind()
    before = connection.scalar(sa.text("SELECT current_setting('search_path')"))
    path = sa.text("SELECT set_config('search_path', :path, true)")
    quoted = connection.dialect.identifier_preparer.quote_identifier(schema)
    connection.execute(path, {"path": quoted})
    connection.execute(sa.text(statement))
    connection.execute(path, {"path": before})

"""Alembic's entry: runs the revisions within the connection and schema it is handed."""

from alembic import context
from sqlalchemy import text

from millwheel.store.schema import metadata
from millwheel.store.views import install_views

connection = context.config.attributes["connection"]
schema = context.config.attributes["schema"]

quoted = connection.dialect.identifier_preparer.quote(schema)
connection.execute(text(f"CREATE SCHEMA IF NOT EXISTS {quoted}"))
context.configure(
    connection=connection,
    target_metadata=metadata,
    version_table_schema=schema,
    include_schemas=True,
)
with context.begin_transaction():
    context.run_migrations()
install_views(connection.connection.driver_connection, schema)

"""Alembic's entry: runs the revisions on a given connection and schema."""

from alembic import context
from sqlalchemy.schema import CreateSchema

from millwheel.store.console.views import install_views
from millwheel.store.postgres.schema import metadata

connection = context.config.attributes["connection"]
schema = context.config.attributes["schema"]

if not connection.dialect.has_schema(connection, schema):
    connection.execute(CreateSchema(schema))
context.configure(
    connection=connection,
    target_metadata=metadata,
    version_table_schema=schema,
    include_schemas=True,
)
with context.begin_transaction():
    context.run_migrations()
# The views are of the newest tables.
if context.get_context().get_current_revision() == context.script.get_current_head():
    install_views(connection.connection.driver_connection, schema)

"""Alembic's entry: runs the migrations on the connection that tuner.db.schema hands over, inside its transaction."""

from alembic import context

from tuner.db.tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata, render_as_batch=True)
context.run_migrations()

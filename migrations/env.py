"""Entry point of Alembic: migrates the connection of the caller, or of ``-x url=...`` on the command line."""

import sqlalchemy as sa
from alembic import context

from placement.db.tables import all_metadata


def _run(connection: sa.Connection) -> None:
    context.configure(
        connection=connection,
        target_metadata=all_metadata(),
        transaction_per_migration=False,
        version_table=context.config.attributes.get("version_table", "alembic_version"),
    )
    with context.begin_transaction():
        context.run_migrations()


def main() -> None:
    connection = context.config.attributes.get("connection")
    if connection is not None:
        _run(connection)
        return
    with sa.create_engine(context.get_x_argument(as_dictionary=True)["url"]).connect() as connection:
        _run(connection)


main()

"""Attributes of resource providers: strings and numbers that the service only keeps and compares."""

import sqlalchemy as sa
from alembic import op

from placement.exceptions import Unavailable

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_COLUMNS = {"provider_id", "name", "text", "number"}
_OPTIONS = {
    f"{kind}_{name}": value
    for kind in ("mysql", "mariadb")
    for name, value in (("engine", "InnoDB"), ("charset", "utf8mb4"), ("collate", "utf8mb4_bin"))
}


def upgrade() -> None:
    # MySQL commits each of these statements: after an upgrade that was interrupted the table may be there.
    present = sa.inspect(op.get_bind())
    if not present.has_table("provider_attributes"):
        op.create_table(
            "provider_attributes",
            sa.Column("provider_id", sa.Integer, nullable=False),
            sa.Column("name", sa.String(64), nullable=False),
            sa.Column("text", sa.String(255), nullable=True),
            sa.Column("number", sa.Double, nullable=True),
            sa.ForeignKeyConstraint(
                ["provider_id"],
                ["resource_providers.id"],
                name="fk_provider_attributes_provider_id",
                ondelete="CASCADE",
            ),
            sa.PrimaryKeyConstraint("provider_id", "name", name="pk_provider_attributes"),
            **_OPTIONS,
        )
    elif {column["name"] for column in present.get_columns("provider_attributes")} != _COLUMNS:
        raise Unavailable(
            "The database has a table provider_attributes of another program: "
            "give the service a database of its own in [placement_database] connection."
        )

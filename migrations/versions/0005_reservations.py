"""Reservations: consumers that hold something until a time, for claims of a project to take from."""

import sqlalchemy as sa
from alembic import op

from placement.exceptions import Unavailable

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_COLUMNS = {"consumer_id", "claim_group", "expires_at"}
_OPTIONS = {
    f"{kind}_{name}": value
    for kind in ("mysql", "mariadb")
    for name, value in (("engine", "InnoDB"), ("charset", "utf8mb4"), ("collate", "utf8mb4_bin"))
}


def upgrade() -> None:
    # MySQL commits each of these statements: after an upgrade that was interrupted the table may be there.
    present = sa.inspect(op.get_bind())
    if not present.has_table("reservations"):
        op.create_table(
            "reservations",
            sa.Column("consumer_id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), nullable=False),
            sa.Column("claim_group", sa.String(255), nullable=True),
            sa.Column("expires_at", sa.Double, nullable=False),
            sa.ForeignKeyConstraint(
                ["consumer_id"], ["consumers.id"], name="fk_reservations_consumer_id", ondelete="CASCADE"
            ),
            sa.PrimaryKeyConstraint("consumer_id", name="pk_reservations"),
            **_OPTIONS,
        )
        indexes = set()
    elif {column["name"] for column in present.get_columns("reservations")} != _COLUMNS:
        raise Unavailable(
            "The database has a table reservations of another program: "
            "give the service a database of its own in [placement_database] connection."
        )
    else:
        indexes = {index["name"] for index in present.get_indexes("reservations")}
    if "ix_reservations_expires_at" not in indexes:
        op.create_index("ix_reservations_expires_at", "reservations", ["expires_at"])

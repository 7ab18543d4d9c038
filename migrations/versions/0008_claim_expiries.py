"""Until when claims last that nobody has confirmed."""

import sqlalchemy as sa
from alembic import op

from placement.exceptions import Unavailable

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

_COLUMNS = {"consumer_id", "generation", "expires_at"}
_OPTIONS = {
    f"{kind}_{name}": value
    for kind in ("mysql", "mariadb")
    for name, value in (("engine", "InnoDB"), ("charset", "utf8mb4"), ("collate", "utf8mb4_bin"))
}
_INDEX = "ix_claim_expiries_expires_at"


def upgrade() -> None:
    # MySQL commits each of these statements: after an upgrade that was interrupted the table may be there.
    bind = op.get_bind()
    if not sa.inspect(bind).has_table("claim_expiries"):
        op.create_table(
            "claim_expiries",
            sa.Column("consumer_id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), nullable=False),
            sa.Column("generation", sa.BigInteger, nullable=False),
            sa.Column("expires_at", sa.Double, nullable=False),
            sa.ForeignKeyConstraint(
                ["consumer_id"], ["consumers.id"], name="fk_claim_expiries_consumer_id", ondelete="CASCADE"
            ),
            sa.PrimaryKeyConstraint("consumer_id", name="pk_claim_expiries"),
            **_OPTIONS,
        )
    elif {column["name"] for column in sa.inspect(bind).get_columns("claim_expiries")} != _COLUMNS:
        raise Unavailable(
            "The database has a table claim_expiries of another program: "
            "give the service a database of its own in [placement_database] connection."
        )
    if _INDEX not in {index["name"] for index in sa.inspect(bind).get_indexes("claim_expiries")}:
        op.create_index(_INDEX, "claim_expiries", ["expires_at"])

"""The ids of consumers get 64 bits, because each attempt of a claim needs an id, also if the claim fails."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_REFERENCE = "fk_allocations_consumer_id"


def upgrade() -> None:
    bind = op.get_bind()
    if bind.dialect.name == "sqlite":
        return  # all integers of SQLite have 64 bits
    # MySQL commits each of these statements, so a repeated upgrade may find that the key is already dropped
    if _REFERENCE in {key["name"] for key in sa.inspect(bind).get_foreign_keys("allocations")}:
        op.drop_constraint(_REFERENCE, "allocations", type_="foreignkey")
    op.alter_column(
        "consumers",
        "id",
        existing_type=sa.Integer(),
        type_=sa.BigInteger(),
        existing_nullable=False,
        **({} if bind.dialect.name == "postgresql" else {"autoincrement": True}),
    )
    op.alter_column(
        "allocations",
        "consumer_id",
        existing_type=sa.Integer(),
        type_=sa.BigInteger(),
        existing_nullable=False,
    )
    op.create_foreign_key(_REFERENCE, "allocations", "consumers", ["consumer_id"], ["id"])
    if bind.dialect.name == "postgresql":
        op.execute("ALTER SEQUENCE consumers_id_seq AS bigint")

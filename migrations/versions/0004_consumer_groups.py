"""Which consumers are in which group, for policies of claims (affinity, anti-affinity)."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_OPTIONS = {
    "mysql_engine": "InnoDB",
    "mysql_charset": "utf8mb4",
    "mysql_collate": "utf8mb4_bin",
    "mariadb_engine": "InnoDB",
    "mariadb_charset": "utf8mb4",
    "mariadb_collate": "utf8mb4_bin",
    "sqlite_autoincrement": True,
}
_INDEX = "ix_consumer_groups_name"


def upgrade() -> None:
    bind = op.get_bind()
    number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    # MySQL commits each of these statements: an upgrade that was interrupted begins here anew.
    if not sa.inspect(bind).has_table("consumer_groups"):
        op.create_table(
            "consumer_groups",
            sa.Column("consumer_id", number, autoincrement=False, nullable=False),
            sa.Column("name", sa.String(length=255), nullable=False),
            sa.ForeignKeyConstraint(
                ["consumer_id"],
                ["consumers.id"],
                name="fk_consumer_groups_consumer_id",
                ondelete="CASCADE",
            ),
            sa.PrimaryKeyConstraint("consumer_id", name="pk_consumer_groups"),
            **_OPTIONS,
        )
    if _INDEX not in {index["name"] for index in sa.inspect(bind).get_indexes("consumer_groups")}:
        op.create_index(_INDEX, "consumer_groups", ["name"], unique=False)

"""Attributes of resource providers: strings and numbers, which the service only stores and compares."""

import sqlalchemy as sa

from placement.db.schema_scripts import make_table

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    make_table(
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
    )

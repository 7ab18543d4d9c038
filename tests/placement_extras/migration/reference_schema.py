"""The tables of OpenStack Placement 16, as its command ``placement-manage db sync`` makes them.

Releases before Xena have no consumer types: see :func:`schema`.
"""

import sqlalchemy as sa


def schema(*, consumer_types=True, foreign_keys=True):
    """Return the tables. Without foreign keys they can hold the rows of a damaged database."""
    metadata = sa.MetaData(
        naming_convention={
            "ix": "%(table_name)s_%(column_0_N_name)s_idx",
            "uq": "uniq_%(table_name)s0%(column_0_N_name)s",
        }
    )

    def reference(target):
        return [sa.ForeignKey(target)] if foreign_keys else []

    def table(name, *parts):
        times = (sa.Column("created_at", sa.DateTime), sa.Column("updated_at", sa.DateTime))
        return sa.Table(name, metadata, *times, *parts, mysql_engine="InnoDB", mysql_charset="utf8mb3")

    def number():
        return sa.Column("id", sa.Integer, primary_key=True)

    table("projects", number(), sa.Column("external_id", sa.String(255), nullable=False, unique=True))
    table("users", number(), sa.Column("external_id", sa.String(255), nullable=False, unique=True))
    table(
        "resource_classes",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("name", sa.String(255), nullable=False, unique=True),
    )
    table("traits", number(), sa.Column("name", sa.String(255), nullable=False, unique=True))
    table("placement_aggregates", number(), sa.Column("uuid", sa.String(36), unique=True))
    table(
        "resource_providers",
        number(),
        sa.Column("uuid", sa.String(36), nullable=False, unique=True),
        sa.Column("name", sa.String(200), unique=True),
        sa.Column("generation", sa.Integer),
        sa.Column("root_provider_id", sa.Integer, *reference("resource_providers.id"), index=True),
        sa.Column("parent_provider_id", sa.Integer, *reference("resource_providers.id"), index=True),
    )
    table(
        "inventories",
        number(),
        sa.Column("resource_provider_id", sa.Integer, nullable=False),
        sa.Column("resource_class_id", sa.Integer, nullable=False, index=True),
        *(
            sa.Column(name, sa.Integer, nullable=False)
            for name in ("total", "reserved", "min_unit", "max_unit", "step_size")
        ),
        sa.Column("allocation_ratio", sa.Float, nullable=False),
        sa.UniqueConstraint("resource_provider_id", "resource_class_id"),
    )
    table(
        "allocations",
        number(),
        sa.Column("resource_provider_id", sa.Integer, nullable=False),
        sa.Column("consumer_id", sa.String(36), nullable=False, index=True),
        sa.Column("resource_class_id", sa.Integer, nullable=False, index=True),
        sa.Column("used", sa.Integer, nullable=False),
        sa.Index(
            "allocations_resource_provider_class_used_idx",
            "resource_provider_id",
            "resource_class_id",
            "used",
        ),
    )
    table(
        "resource_provider_aggregates",
        sa.Column("resource_provider_id", sa.Integer, primary_key=True),
        sa.Column("aggregate_id", sa.Integer, primary_key=True, index=True),
    )
    table(
        "resource_provider_traits",
        sa.Column("trait_id", sa.Integer, *reference("traits.id"), primary_key=True),
        sa.Column("resource_provider_id", sa.Integer, *reference("resource_providers.id"), primary_key=True),
    )
    if consumer_types:
        table("consumer_types", number(), sa.Column("name", sa.String(255), nullable=False, unique=True))
    table(
        "consumers",
        number(),
        sa.Column("uuid", sa.String(36), nullable=False, unique=True),
        sa.Column("project_id", sa.Integer, nullable=False),
        sa.Column("user_id", sa.Integer, nullable=False),
        sa.Column("generation", sa.Integer, nullable=False, server_default="0"),
        *(
            [sa.Column("consumer_type_id", sa.Integer, sa.ForeignKey("consumer_types.id"), index=True)]
            if consumer_types
            else []
        ),
        sa.Index("consumers_project_id_user_id_uuid_idx", "project_id", "user_id", "uuid"),
    )
    return metadata

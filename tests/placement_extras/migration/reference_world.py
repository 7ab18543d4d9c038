"""A database of OpenStack Placement 16: its tables, as ``placement-manage db sync`` makes them, with rows.

The rows are nested and sharing providers, custom names, and consumers of old releases. Releases before Xena
have no consumer types: see :func:`schema`.
"""

from datetime import datetime

import os_resource_classes
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


def uuid(kind, number):
    """Return a readable uuid; ``kind`` is one hexadecimal digit."""
    return f"{kind * 8}-0000-4000-8000-{number:012x}"


SHARING, HOST, NUMA, DEVICE, NAMELESS = (uuid("a", number) for number in range(1, 6))
POOL, SPELLED_BY_CLIENT = uuid("b", 1), "BBBBBBBB000040008000000000000002"
SERVER, MIGRATION, UNTYPED, UNRECORDED, EMPTY = (uuid("c", number) for number in range(1, 6))

GOLD, SILVER = 10_000, 10_001
VCPU, MEMORY_MB, DISK_GB = 0, 1, 2

#: (id, uuid, name, generation, root, parent); the device was moved below a NUMA node that is younger,
#: and the node's root was never set, as before Stein
PROVIDERS = [
    (3, SHARING, "nfs", 7, 3, None),
    (4, DEVICE, "device", 1, 5, 9),
    (5, HOST, "host", 12, 5, None),
    (9, NUMA, "numa", 3, None, 5),
    (11, NAMELESS, None, None, 11, None),
]
#: (provider, class, total, reserved, min_unit, max_unit, step_size, allocation_ratio)
INVENTORIES = [
    (3, DISK_GB, 2_000_000_000, 10, 5, 1000, 5, 1.25),
    (5, MEMORY_MB, 65536, 512, 1, 65536, 1, 1.0),
    (9, VCPU, 16, 0, 1, 16, 1, 16.0),
    (4, GOLD, 8, 0, 1, 8, 1, 1.0),
]
TRAITS = {1: "HW_CPU_X86_AVX2", 2: "MISC_SHARES_VIA_AGGREGATE", 7: "CUSTOM_FAST", 8: "CUSTOM_UNUSED"}
PROVIDER_TRAITS = [(3, 2), (9, 1), (9, 7)]
AGGREGATES = {1: POOL, 2: SPELLED_BY_CLIENT}
PROVIDER_AGGREGATES = [(3, 1), (5, 1), (5, 2)]
#: (id, uuid, project, user, generation, type)
CONSUMERS = [
    (21, SERVER, 1, 1, 5, 1),
    (22, MIGRATION, 1, 2, 1, 2),
    (23, UNTYPED, 2, 1, 2, None),
    (24, EMPTY, 2, 1, 3, 1),
]
#: (provider, consumer, class, used); two rows of one thing add up
ALLOCATIONS = [
    (9, SERVER, VCPU, 4),
    (5, SERVER, MEMORY_MB, 2048),
    (3, SERVER, DISK_GB, 20),
    (9, MIGRATION, VCPU, 2),
    (4, UNTYPED, GOLD, 1),
    (4, UNTYPED, GOLD, 2),
    (3, UNRECORDED, DISK_GB, 5),
]
CREATED = datetime(2024, 2, 29, 12, 0, 0)
UPDATED = datetime(2025, 6, 1, 0, 0, 30)


class ReferenceDatabase:
    """A database of OpenStack Placement. Tests change it with ``execute``."""

    def __init__(self, url, *, is_new=True, **options):
        self.url = url
        self.metadata = schema(**options)
        self._engine = sa.create_engine(url, poolclass=sa.NullPool)
        if is_new:
            self.metadata.create_all(self._engine)

    def execute(self, *statements):
        with self._engine.begin() as conn:
            for statement in statements:
                conn.execute(sa.text(statement))

    def at_revision(self, revision):
        """Record a revision of the schema, as OpenStack Placement's migrations do."""
        self.execute(
            "CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL, "
            "CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num))",
            f"INSERT INTO alembic_version VALUES ('{revision}')",
        )

    def insert(self, table, columns, rows, *, updated=UPDATED):
        """Insert rows, given as tuples of their columns, with times."""
        names = (*columns, "created_at", "updated_at")
        values = [dict(zip(names, (*row, CREATED, updated), strict=True)) for row in rows]
        with self._engine.begin() as conn:
            conn.execute(sa.insert(self.metadata.tables[table]), values)

    def names(self, *, standard_classes=True):
        """Insert resource classes and traits; before Xena the standard classes were in no table."""
        classes = list(enumerate(os_resource_classes.STANDARDS)) if standard_classes else []
        self.insert(
            "resource_classes", ("id", "name"), [*classes, (GOLD, "CUSTOM_GOLD"), (SILVER, "CUSTOM_SILVER")]
        )
        self.insert("traits", ("id", "name"), TRAITS.items())

    def fill(self, *, standard_classes=True):
        """Insert all rows of this module."""
        self.names(standard_classes=standard_classes)
        columns = ("id", "uuid", "name", "generation", "root_provider_id", "parent_provider_id")
        # MySQL checks foreign keys row by row: first the providers, then their parents
        self.insert("resource_providers", columns, [(*row[:4], None, None) for row in PROVIDERS])
        for number, *_, root, parent in PROVIDERS:
            values = f"root_provider_id = {root or 'NULL'}, parent_provider_id = {parent or 'NULL'}"
            self.execute(f"UPDATE resource_providers SET {values} WHERE id = {number}")
        units = ("total", "reserved", "min_unit", "max_unit", "step_size", "allocation_ratio")
        self.insert("inventories", ("resource_provider_id", "resource_class_id", *units), INVENTORIES)
        self.insert("resource_provider_traits", ("resource_provider_id", "trait_id"), PROVIDER_TRAITS)
        self.insert("placement_aggregates", ("id", "uuid"), AGGREGATES.items())
        self.insert(
            "resource_provider_aggregates", ("resource_provider_id", "aggregate_id"), PROVIDER_AGGREGATES
        )
        self.insert("projects", ("id", "external_id"), [(1, "red"), (2, "blue")])
        self.insert("users", ("id", "external_id"), [(1, "ann"), (2, "bob")])
        who = ("id", "uuid", "project_id", "user_id", "generation", "consumer_type_id")
        if "consumer_types" in self.metadata.tables:
            self.insert("consumer_types", ("id", "name"), [(1, "INSTANCE"), (2, "MIGRATION")])
            self.insert("consumers", who, CONSUMERS)
        else:
            self.insert("consumers", who[:-1], [row[:-1] for row in CONSUMERS])
        self.allocate(*ALLOCATIONS)

    def allocate(self, *rows):
        self.insert(
            "allocations",
            ("resource_provider_id", "consumer_id", "resource_class_id", "used"),
            rows,
            updated=None,
        )

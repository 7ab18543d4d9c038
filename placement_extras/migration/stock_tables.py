"""The tables of OpenStack Placement, as its releases from Stein to 2026.1 have them.

Consumer types came with Xena and may be missing. Once a database was adopted, the tables
stand beside ours under names with a prefix.
"""

from typing import Any

import sqlalchemy as sa


class StockTables:
    """The tables under their own names, or with a prefix before each."""

    def __init__(self, prefix: str = "") -> None:
        self._prefix = prefix
        self.metadata = sa.MetaData()
        self.providers = self._table(
            "resource_providers",
            uuid=sa.String,
            name=sa.String,
            generation=sa.Integer,
            root_provider_id=sa.Integer,
            parent_provider_id=sa.Integer,
        )
        self.inventories = self._table(
            "inventories",
            resource_provider_id=sa.Integer,
            resource_class_id=sa.Integer,
            total=sa.Integer,
            reserved=sa.Integer,
            min_unit=sa.Integer,
            max_unit=sa.Integer,
            step_size=sa.Integer,
            allocation_ratio=sa.Float,
        )
        self.allocations = self._table(
            "allocations",
            resource_provider_id=sa.Integer,
            consumer_id=sa.String,
            resource_class_id=sa.Integer,
            used=sa.Integer,
        )
        self.consumers = self._table(
            "consumers",
            uuid=sa.String,
            project_id=sa.Integer,
            user_id=sa.Integer,
            generation=sa.Integer,
            consumer_type_id=sa.Integer,
        )
        self.projects = self._table("projects", external_id=sa.String)
        self.users = self._table("users", external_id=sa.String)
        self.types = self._table("consumer_types", name=sa.String)
        self.classes = self._table("resource_classes", name=sa.String)
        self.traits = self._table("traits", name=sa.String)
        self.aggregates = self._table("placement_aggregates", uuid=sa.String)
        self.provider_traits = self._pairs("resource_provider_traits", "trait_id")
        self.provider_aggregates = self._pairs("resource_provider_aggregates", "aggregate_id")

    def _table(self, name: str, /, **columns: Any) -> sa.Table:
        typed = {"id": sa.Integer, **columns, "created_at": sa.DateTime, "updated_at": sa.DateTime}
        listed = (sa.Column(column, kind) for column, kind in typed.items())
        return sa.Table(self._prefix + name, self.metadata, *listed)

    def _pairs(self, name: str, column: str) -> sa.Table:
        """What belongs to resource providers."""
        return sa.Table(
            self._prefix + name,
            self.metadata,
            sa.Column("resource_provider_id", sa.Integer),
            sa.Column(column, sa.Integer),
            sa.Column("created_at", sa.DateTime),
            sa.Column("updated_at", sa.DateTime),
        )

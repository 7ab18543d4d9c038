"""What a worker has read, and how far the database had come then."""

import math
from dataclasses import dataclass, field

from placement.model import rows
from placement.model.provider import Provider
from placement.model.snapshot import ModelSnapshot


@dataclass
class ModelState:
    """A snapshot and the point in the history of the database that it shows.

    ``stamps`` has, by bucket and id, when each provider changed last, in any way. At ``next_expiry``, by the
    clock of the database, a reservation is to be given back. While changes are applied it is not ``whole``,
    nor afterwards if the database broke off in between. What is read into it is ``shared`` where it is equal.
    """

    names: rows.NameTable
    snapshot: ModelSnapshot = field(default_factory=ModelSnapshot)
    counters: dict[int, int] = field(default_factory=dict)
    deletions: dict[int, int] = field(default_factory=dict)
    stamps: dict[int, dict[int, int]] = field(default_factory=dict)
    next_expiry: float = math.inf
    shared: rows.SharedValues = field(default_factory=rows.SharedValues)
    whole: bool = True
    _totals: dict[int, int] = field(default_factory=dict)
    """Of buckets the sums in their fingerprints, where somebody asked for these."""

    def counters_sum(self) -> int:
        """What the database says where it stands (:mod:`placement.db.position`)."""
        return sum(self.counters.values())

    def put(self, row: rows.ProviderVersion, provider: Provider) -> None:
        """Take up a provider as the row shows it."""
        self.snapshot.put(provider)
        self.stamp(row, provider)

    def stamp(self, row: rows.ProviderVersion, provider: Provider) -> None:
        """Note when a provider changed last."""
        # most changed in both ways at once: one number is kept once
        described = provider.described_seq
        seq = described if row.change_seq == described else row.change_seq
        stamps = self.stamps.setdefault(row.bucket, {})
        if row.bucket in self._totals:
            self._totals[row.bucket] += rows.summand(seq) - rows.summand(stamps.get(provider.id, 0))
        stamps[provider.id] = seq

    def keep_only(self, bucket: int, ids: set[int]) -> None:
        """Forget the other providers of the bucket."""
        stamps = self.stamps.setdefault(bucket, {})
        self._totals.pop(bucket, None)
        for provider_id in stamps.keys() - ids:
            del stamps[provider_id]
            self.snapshot.remove(provider_id)

    def fingerprint(self, bucket: int) -> rows.BucketFingerprint:
        """That of the providers of the bucket."""
        stamps = self.stamps.get(bucket, {})
        if bucket not in self._totals:
            self._totals[bucket] = sum(map(rows.summand, stamps.values()))
        return rows.BucketFingerprint(len(stamps), self._totals[bucket])

"""OpenStack Keystone for tests: the released one, in an environment of its own, on loopback and SQLite.

``with Keystone(folder) as keystone: keystone.identity.token(CALLERS["admin"])`` starts it and gets a token.
"""

from tests.keystone.identity import CALLERS, PLACEMENT, REGION, Caller, Identity
from tests.keystone.memcached import Memcached, MemcachedMissing
from tests.keystone.server import Keystone, KeystoneFailed

__all__ = [
    "CALLERS",
    "PLACEMENT",
    "REGION",
    "Caller",
    "Identity",
    "Keystone",
    "KeystoneFailed",
    "Memcached",
    "MemcachedMissing",
]

"""The options in ``[placement_database]``: the database, its connections and their limits."""

from typing import Final

from oslo_config import cfg

GROUP: Final = cfg.OptGroup("placement_database", title="Database", help="The database of the service.")

OPTIONS: list[cfg.Opt] = [
    cfg.StrOpt(
        "connection",
        default="sqlite:////var/lib/placement/placement.sqlite",
        # the URL can contain a password; because of this argument, oslo.config hides the URL in logs
        secret=True,
        help="""
SQLAlchemy URL of the database, for instance
postgresql+psycopg://placement:secret@db/placement or
mysql+pymysql://placement:secret@db/placement?charset=utf8mb4.

""",
    ),
    cfg.BoolOpt(
        "sync_on_startup",
        default=False,
        help="""
Whether the service updates the schema of the database when it starts, as
'placement-manage db sync' does. Several workers can start at the same time.

""",
    ),
    cfg.IntOpt(
        "max_pool_size",
        # this default and the next one are the defaults of oslo.db, which operators know
        default=5,
        min=1,
        help="""
Maximum number of unused connections that each pool of a worker keeps open. A
worker has three pools: for writes, for reads, and for the query whether the
database has changed, which precedes each answer. A thread uses at most one
connection of each pool.
""",
    ),
    cfg.IntOpt(
        "max_overflow",
        default=50,
        min=-1,
        help="Maximum number of connections of each pool in addition to max_pool_size; -1 for no maximum.",
    ),
    cfg.IntOpt(
        "pool_timeout",
        default=30,
        min=0,
        help="Seconds that a request waits for a free connection before the client gets the answer 503.",
    ),
    cfg.IntOpt(
        "connection_recycle_time",
        default=3600,
        min=-1,
        help="Seconds after which a worker replaces a connection when it next uses it; -1 for never.",
    ),
    cfg.FloatOpt(
        "lock_timeout",
        default=10.0,
        min=1.0,
        help="""
Seconds that a request waits for a lock of another transaction before the
client gets the answer 503. Keep this value below the timeout after which the
web server stops a worker.

""",
    ),
    cfg.IntOpt(
        "connect_timeout",
        default=5,
        # libpq waits at least two seconds
        min=2,
        help="""
Maximum time, in seconds, until the database accepts a connection. The same
limit applies to the query with which a worker asks the database for changes
before each answer. A connection to PostgreSQL also counts as broken if the
machine of the database sends nothing for this time. While the database does
not answer, requests get the answer 503, and one request at a time tests
whether the database answers again.

""",
    ),
    cfg.FloatOpt(
        "statement_timeout",
        default=20.0,
        min=1.0,
        help="""
Maximum time, in seconds, that the database takes for a statement. The time
does not include waits for locks, which lock_timeout limits. After this time
PostgreSQL and MariaDB end the statement. If the worker has no answer one
second later, it closes the connection. The longest statements read all
resource providers when a worker starts. For 10,000 hosts these statements
take a fraction of a second.

""",
    ),
    cfg.FloatOpt(
        "idle_in_transaction_timeout",
        default=5.0,
        min=1.0,
        help="""
Seconds without a statement after which PostgreSQL or MariaDB ends a
transaction of a write, which holds locks. So a worker that is frozen, or that
runs on a failed host, blocks other workers for at most this time. If a worker
was only slow, it starts the transaction again. Keep this value below
lock_timeout.

""",
    ),
    cfg.IntOpt(
        "mysql_wsrep_sync_wait",
        default=7,
        min=0,
        # the value consists of bits of MariaDB's variable; the bit 8 is for SHOW, which the service does not
        # use
        max=15,
        help="""
Kinds of statements before which a node of a Galera cluster waits until it
has applied the commits of the other nodes. The value is a sum of 1 (SELECT),
2 (UPDATE and DELETE) and 4 (INSERT). With 7, each answer takes into account
all writes that any node has confirmed, even if the workers are connected to
different nodes. Use a smaller sum only if all workers always use the same
node. Other databases ignore this option.

""",
    ),
]

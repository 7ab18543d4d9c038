"""The options in ``[placement_database]``: the database, its connections and their limits."""

from typing import Final

from oslo_config import cfg

GROUP: Final = cfg.OptGroup("placement_database", title="Database", help="The database of the service.")

OPTIONS: list[cfg.Opt] = [
    cfg.StrOpt(
        "connection",
        default="sqlite:////var/lib/placement/placement.sqlite",
        # the URL may contain a password, which oslo.config then hides in logs
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
Whether the service updates the schema when it starts, as 'placement-manage
db sync' does. Several workers may start at the same time.

""",
    ),
    cfg.IntOpt(
        "max_pool_size",
        # this number and the next one are defaults of oslo.db, which operators know
        default=5,
        min=1,
        help="""
Number of unused connections that each of a worker's three pools keeps open at
most. The pools are for writes, for reads, and for the query for changes
before an answer. A thread uses at most one connection of each pool.
""",
    ),
    cfg.IntOpt(
        "max_overflow",
        default=50,
        min=-1,
        help="Number of connections that each pool may open in addition to max_pool_size; -1 for any number.",
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
        help="Age, in seconds, from which a worker replaces a connection at its next use; -1 for never.",
    ),
    cfg.FloatOpt(
        "lock_timeout",
        default=10.0,
        min=1.0,
        help="""
Seconds that a request waits for a lock of another transaction before the
client gets the answer 503. Keep this value below the timeout of the web
server's workers.

""",
    ),
    cfg.IntOpt(
        "connect_timeout",
        default=5,
        # libpq waits at least two seconds
        min=2,
        help="""
Maximum time, in seconds, in which the database accepts a connection. The
same limit applies to the query for changes that a worker sends before it
answers from its memory. A connection to PostgreSQL also counts as broken if
the machine of the database sends nothing for this time. While the database
does not answer, requests get the answer 503, and one request at a time tests
whether the database answers again.

""",
    ),
    cfg.FloatOpt(
        "statement_timeout",
        default=20.0,
        min=1.0,
        help="""
Maximum time, in seconds, that the database may take for a statement. The
time does not include waits for locks; lock_timeout limits these waits. After
this time PostgreSQL and MariaDB end the statement. If the worker has no
answer one second later, it closes the connection. The longest statements
read all resource providers when a worker starts. For 10,000 hosts these
statements take a fraction of a second.

""",
    ),
    cfg.FloatOpt(
        "idle_in_transaction_timeout",
        default=5.0,
        min=1.0,
        help="""
Seconds without a statement after which PostgreSQL or MariaDB ends a
transaction that holds locks. So a worker that is frozen, or runs on a failed
host, blocks other workers for at most this time. A worker that was only slow
starts the transaction again. Keep this value below lock_timeout.

""",
    ),
    cfg.IntOpt(
        "mysql_wsrep_sync_wait",
        default=7,
        min=0,
        # these are bits of MariaDB; the bit 8 is for SHOW, which the service does not use
        max=15,
        help="""
Kinds of statements before which a node of a Galera cluster waits until it
has applied the commits of the other nodes. The value is a sum of 1 (SELECT),
2 (UPDATE and DELETE) and 4 (INSERT). With 7, each answer contains all writes
that any node has confirmed, even if the workers are connected to different
nodes. Use a smaller sum only if all workers always use the same node. Other
databases ignore the option.

""",
    ),
]

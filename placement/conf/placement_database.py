"""The section ``[placement_database]``: the database, its connections and their limits."""

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
Whether the service updates the schema when it starts, as 'placement-manage db
sync' does. Several workers may start at once.
""",
    ),
    cfg.IntOpt(
        "max_pool_size",
        # this number and the next one are defaults of oslo.db, which operators know
        default=5,
        min=1,
        help="Number of connections that each worker keeps open.",
    ),
    cfg.IntOpt(
        "max_overflow",
        default=50,
        min=-1,
        help="Number of connections that each worker may open in addition to max_pool_size; -1 for any"
        " number.",
    ),
    cfg.IntOpt(
        "pool_timeout",
        default=30,
        min=0,
        help="Seconds that a request waits for a free connection before it is answered 503.",
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
Seconds that a request waits for a lock of another transaction before it is answered 503. Keep this value
below the timeout of the web server's workers.
""",
    ),
    cfg.IntOpt(
        "connect_timeout",
        default=5,
        # libpq waits at least two seconds
        min=2,
        help="""
Seconds that the database may take to accept a connection, or to answer the check for changes before each
answer of the service. The network connection to the database may be silent for at most this time. After this
time requests are answered 503, and one request at a time tries whether the database answers again.
""",
    ),
    cfg.FloatOpt(
        "statement_timeout",
        default=20.0,
        min=1.0,
        help="""
Seconds that the database may take for a statement, without the time that it waits for locks (lock_timeout).
After this time PostgreSQL and MariaDB end the statement. If no answer has come a second later, the worker
closes the connection. The longest statements read all resource providers when a worker starts. For 10,000
hosts they take a fraction of a second.
""",
    ),
    cfg.FloatOpt(
        "idle_in_transaction_timeout",
        default=5.0,
        min=1.0,
        help="""
Seconds after which PostgreSQL or MariaDB ends a transaction that holds locks and sends no further statement.
So a worker that is frozen, or runs on a failed host, blocks other workers for at most this time. A worker
that was only slow starts its transaction again. Keep this value below lock_timeout.
""",
    ),
    cfg.IntOpt(
        "mysql_wsrep_sync_wait",
        default=7,
        min=0,
        # these are bits of MariaDB; the bit 8 is for SHOW, which the service does not use
        max=15,
        help="""
In a Galera cluster, the statements before which a node first applies the
commits of the others: the sum of 1 (reading), 2 (UPDATE and DELETE) and 4
(INSERT). With 7 no answer is older than a write that another node has
confirmed, whichever nodes the workers are connected to. Use a smaller sum only
if all workers use the same node at any time. Other databases ignore the
option.
""",
    ),
]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register the options of ``[placement_database]``."""
    conf.register_opts(OPTIONS, group=GROUP.name)


def list_opts() -> list[tuple[cfg.OptGroup, list[cfg.Opt]]]:
    """Return the options by group."""
    return [(GROUP, OPTIONS)]

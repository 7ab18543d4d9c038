"""``[placement_database]``: where the data are and how connections are kept."""

from typing import Final

from oslo_config import cfg

GROUP: Final = cfg.OptGroup("placement_database", title="Database", help="The database of the service.")

OPTIONS: list[cfg.Opt] = [
    cfg.StrOpt(
        "connection",
        default="sqlite:////var/lib/placement/placement.sqlite",
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
Bring the schema up to date when the service starts, as 'placement-manage db
sync' does. Several workers may start at once.
""",
    ),
    cfg.IntOpt(
        "max_pool_size",
        default=5,
        min=1,
        help="How many connections each worker keeps open.",
    ),
    cfg.IntOpt(
        "max_overflow",
        default=50,
        min=-1,
        help="How many connections each worker may open beyond max_pool_size; -1 for any number.",
    ),
    cfg.IntOpt(
        "pool_timeout",
        default=30,
        min=0,
        help="How long, in seconds, a request waits for a free connection before it is answered 503.",
    ),
    cfg.IntOpt(
        "connection_recycle_time",
        default=3600,
        min=-1,
        help="Age, in seconds, from which a connection is replaced at its next use; -1 for never.",
    ),
    cfg.FloatOpt(
        "lock_timeout",
        default=10.0,
        min=1.0,
        help="""
How long, in seconds, a request waits for a lock that another transaction
holds before it is answered 503. Keep it below the timeout of the web server's
workers.
""",
    ),
    cfg.IntOpt(
        "connect_timeout",
        default=5,
        min=2,
        help="""
How long, in seconds, the database may take to accept a connection, to answer
the question that is asked before every answer, and to show any sign of life on
the network. From then on requests are answered 503, and one at a time tries
whether it answers again.
""",
    ),
    cfg.FloatOpt(
        "statement_timeout",
        default=20.0,
        min=1.0,
        help="""
How long, in seconds, the database may take for a statement, beside the time
that it waits for locks (lock_timeout). PostgreSQL and MariaDB end it then, and
a worker that has no answer a second later gives the connection up. The longest
statements read everything, when a worker starts: a fraction of a second for
10,000 hosts.
""",
    ),
    cfg.FloatOpt(
        "idle_in_transaction_timeout",
        default=5.0,
        min=1.0,
        help="""
How long, in seconds, a worker may leave a transaction that holds locks without
a statement, until PostgreSQL or MariaDB ends it. So a worker that is frozen, or
whose host is gone, keeps others waiting for this long at most; one that was
only slow starts its transaction again. Keep it below lock_timeout.
""",
    ),
    cfg.IntOpt(
        "mysql_wsrep_sync_wait",
        default=7,
        min=0,
        max=15,
        help="""
In a Galera cluster, before which statements a node first applies what the
others have committed: the sum of 1 (reading), 2 (UPDATE and DELETE) and 4
(INSERT). With 7 no answer is older than a write that another node has
confirmed, whichever nodes the workers are connected to. Less is right only
where all workers use one and the same node at a time. Other databases do not
look at this.
""",
    ),
]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Make the options of ``[placement_database]`` known to ``conf``."""
    conf.register_opts(OPTIONS, group=GROUP.name)


def list_opts() -> list[tuple[cfg.OptGroup, list[cfg.Opt]]]:
    """The options by group."""
    return [(GROUP, OPTIONS)]

"""The options in ``[api]``: authentication of requests, and limits on their cost."""

from typing import Final

from oslo_config import cfg

GROUP: Final = cfg.OptGroup("api", title="API", help="The REST API.")

OPTIONS: list[cfg.Opt] = [
    cfg.StrOpt(
        "auth_strategy",
        default="keystone",
        choices=[
            ("keystone", "Tokens are validated by the Identity service; see [keystone_authtoken]."),
            ("noauth2", "Tokens are not checked. For development and tests only."),
        ],
        # configuration files of OpenStack Placement may still have the option in [DEFAULT]
        deprecated_group="DEFAULT",
        help="""
How the service authenticates requests. With noauth2 the service checks no
token, and reads each token as 'user:project' or as 'user'. The user 'admin'
then has the rights of an administrator. The headers X-Roles and X-Project-Id
of a request may name other roles and another project.

""",
    ),
    cfg.FloatOpt(
        "candidates_deadline",
        default=5.0,
        min=0.01,
        help="""
Maximum CPU time, in seconds, of a search for allocation candidates. If a
search takes longer, the answer has the candidates found so far. The header
Placement-Ext-Incomplete: deadline then says that more candidates may exist.
If the search has found no candidate at that time, the answer is 400 with the
code placement.ext.search_too_long. This answer names the group of the
request for which the search found no provider.

A search that takes more than some hundredths of a second is a long search.
At most half of a worker's threads (placement-api --threads) may run long
searches at the same time. Under another web server, at most two threads of a
worker may run long searches. A further long search gets the answer 503, and
the client has to try again. So the other threads stay free for short
requests. In a worker with a single thread, a long search keeps all other
requests waiting.

""",
    ),
    cfg.FloatOpt(
        "explanations_deadline",
        default=1.0,
        min=0.01,
        help="""
Maximum CPU time, in seconds, of an explanation (POST /ext/v1/explanations).
An explanation that takes longer ends with the results found so far, and the
field incomplete of the answer names the missing parts. The explanation is
computed in three parts: the conditions on single providers, then the
reasons, then the changes that would help. If the first part is not complete
in time, the answer is 400 with the code placement.ext.search_too_long.

An explanation counts as a long search. The help of [api] candidates_deadline
says how many long searches a worker runs at the same time.

""",
    ),
    cfg.BoolOpt(
        "explain_empty",
        default=True,
        help="""
Whether the log explains each empty answer to GET /allocation_candidates. The
explanation is a line at INFO. The line has the ids of the request. For up to
six conditions, the line has the number of hosts for which this condition is
the first that fails. The line also names a change of the request that would
give candidates, if there is one. A worker sends the answer first, and
computes the explanation
afterwards. A worker computes one explanation at a time, and uses at most 5
percent of a CPU for explanations. The worker reuses the explanation for
equal requests until a resource provider changes. After each explanation the
worker computes no other one for some time, which keeps it below 5 percent. If an
answer needs a new explanation in this time, or while the worker computes another
one, the worker only counts the answer. The line of the worker's next new
explanation has the number of these answers.

""",
    ),
    cfg.IntOpt(
        # the option has no default, because only placement-api knows its number of threads
        "waiting_requests",
        min=0,
        help="""
Maximum number of requests for changes (GET /ext/v1/changes) that wait in a
worker at the same time. Such a request waits until a resource changes, and
occupies a thread for at most a minute. If this number of requests is already
waiting, a worker answers a further request at once, with the header
Retry-After. The default is a quarter of the threads of a worker
(placement-api --threads), rounded down. Under another web server the default
is 0, because the service does not know the number of threads there.

""",
    ),
    cfg.IntOpt(
        "candidates_size",
        default=128,
        min=1,
        help="""
Approximate maximum size, in MiB, of a list of allocation candidates. A
longer list is cut at this size, and the answer has the header
Placement-Ext-Incomplete: size. While a worker makes a list, it needs up to
six times the size of the list as memory. Requests of Nova have a limit, so
the answers to them are far smaller.

""",
    ),
]

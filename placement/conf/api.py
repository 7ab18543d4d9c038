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
            (
                "noauth2",
                "Tokens are not checked. For tests, and for one machine where the service listens on loopback"
                " only.",
            ),
        ],
        # configuration files of OpenStack Placement sometimes still have this option in [DEFAULT]
        deprecated_group="DEFAULT",
        help="""
How the service authenticates requests. With noauth2 the service checks no
token. It reads each token as 'user:project' or as 'user', and the user 'admin'
has the rights of an administrator. The headers X-Roles and X-Project-Id of a
request can set other roles and another project.

""",
    ),
    cfg.FloatOpt(
        "candidates_deadline",
        default=5.0,
        min=0.01,
        help="""
Maximum CPU time, in seconds, of a search for allocation candidates. If a
search takes longer, the answer has the candidates found so far, and the header
"Placement-Ext-Incomplete: deadline". This header means that perhaps more
candidates exist. If the search has found no candidate until then, the answer
is 400 with the code placement.ext.search_too_long. This answer shows the group
of the request for which the search found no provider.

A search that takes more than some hundredths of a second is a long search.
At most half of a worker's threads (placement-api --threads) run long searches
at the same time, so that the other threads stay free for short requests. Under
another web server, at most two threads of a worker run long searches. A
request for a further long search gets the answer 503, and the client has to
try again. In a worker with a single thread, all other requests wait for the
end of a long search.

""",
    ),
    cfg.FloatOpt(
        "explanations_deadline",
        default=1.0,
        min=0.01,
        help="""
Maximum CPU time, in seconds, of an explanation (POST /ext/v1/explanations).
The explanation is computed in three parts: first the conditions on single
providers, then the reasons why hosts do not fit, then the changes of the
request that would help. If this takes longer, the answer has the results found
so far, and its field "incomplete" has the missing parts. If the first part is
not complete in time, the answer is 400 with the code
placement.ext.search_too_long.

An explanation counts as a long search. The help of [api] candidates_deadline
says how many long searches a worker runs at the same time.

""",
    ),
    cfg.BoolOpt(
        "explain_empty",
        default=True,
        help="""
Whether the log explains answers to GET /allocation_candidates that have no
candidates. The explanation is a line at the level INFO, with the ids of the
request. The line shows up to six conditions, each with the number of hosts for
which it is the first condition that fails. If a change of the request would
lead to candidates, the line also shows this change. A worker sends the answer
first, and computes the explanation afterwards. The worker uses the same
explanation for equal requests until a resource provider changes. A worker
computes one explanation at a time, and pauses after each explanation, so that
explanations use at most 5 percent of a CPU. If an answer needs a new
explanation during a pause, or while another explanation is computed, the worker
only counts the answer. The line of the worker's next new explanation has the
number of these answers.

""",
    ),
    cfg.IntOpt(
        # the option has no default, because only placement-api knows its number of threads
        "waiting_requests",
        min=0,
        help="""
Maximum number of requests for changes (GET /ext/v1/changes) that wait in a
worker at the same time. Such a request waits until a resource provider
changes, and occupies a thread for at most a minute. If this number of requests
is already waiting, the worker answers a further request immediately, with the
header Retry-After. The default is a quarter of the threads of a worker
(placement-api --threads), rounded down. Under another web server the default
is 0, because the service does not know how many threads this server has.

""",
    ),
    cfg.IntOpt(
        "candidates_size",
        default=128,
        min=1,
        help="""
Approximate maximum size, in MiB, of a list of allocation candidates. A
longer list is cut at this size, and the answer has the header
"Placement-Ext-Incomplete: size". While a worker makes a list, it needs up to
six times the size of the list as memory. Nova limits the number of candidates
in its requests, so the answers to Nova are far smaller.

""",
    ),
]

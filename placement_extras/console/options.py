"""The options in ``[console]``: the web pages for operators and projects."""

from typing import Final

from oslo_config import cfg

GROUP: Final = cfg.OptGroup(
    "console", title="Console", help="The console: pages for a browser, below /console."
)

OPTIONS: list[cfg.Opt] = [
    cfg.BoolOpt(
        "enabled",
        default=False,
        help="""
Beta. Whether the service has a console at /console: pages that show hosts,
their free, used, stranded and disabled amounts, and the consumers. A visitor
sees a page if the policy allows the visitor to read the same data over REST.
The console works in any browser, without scripts.

Visitors sign in with a password or an application credential, which the
Identity service of [keystone_authtoken] checks. Signing in needs HTTPS in
front of the service, and the Python package cryptography. For this package,
add [console] to the path of the wheel in the command of pip. With [api]
auth_strategy = noauth2 visitors do not sign in, and each visitor has all
rights of an administrator.

""",
    ),
    cfg.IntOpt(
        "session_lifetime",
        default=8 * 3600,
        min=60,
        help="""
Beta. The number of seconds after which a visitor of the console has to sign
in again. The session ends earlier if the token of the Identity service
expires: see [token] expiration in the configuration of that service.

""",
    ),
]

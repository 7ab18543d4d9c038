"""The console: web pages for operators and projects below ``/console``.

Nouns
    A *page* shows a part of the cloud. A pure function reads the read model and returns the content of the
    page as frozen dataclasses. A template renders this content. The *route* of a page calls the function and
    the template. Some pages show an answer of the REST API. The route of such a page *asks* the handlers of
    the API within the process, with the rights of the visitor.

    A *visitor* is the user of the browser. Visitors have the same rights as with the REST API. A page names
    the policy rules of all REST operations that return the same content. The visitor sees the page if each of
    these rules allows the operation.

    A *host* is a tree of resource providers. A host is *disabled* if its root has COMPUTE_STATUS_DISABLED,
    *full* if it has CPUs and memory and one of the two is used up, and *open* otherwise. Agents can announce
    the time of their next report. An open host is *silent* if the announced report of its agent is overdue.
    Free amounts on a full host are *stranded*, because each guest needs both CPUs and memory. Free amounts on
    a disabled host count as disabled.

A worked example
    A host has 64 VCPU and 256 GiB of memory. Guests use all VCPU and 100 GiB, so the host is full. The free
    156 GiB of memory are stranded, and so are 3 TiB of free disk. If the host is disabled, its free amounts
    count as disabled and not as stranded.

Parts
    - This module, ``rules``, ``feeds`` and ``revisions`` register the console with the service.
      ``feeds`` makes and revokes secret addresses of calendars over REST. ``app`` makes the Flask
      application. ``admission`` finds the session of a request. ``signing_in`` has the form to sign in, and
      limits the attempts to sign in.
    - Each page has a module with its route: ``hosts``, ``capacity``, ``candidates``,
      ``consumers``, ``names``, ``neighbours``, ``settings`` and ``window_calendar``. ``icalendar`` makes a
      feed for other calendar programs. Three pages have a second module with their computations: ``fleet``
      for the list of hosts, ``host`` for the page of one host, and ``calendar_rows`` for the calendar.
    - ``page_request`` has the objects that all routes need: the visitor, the policy rules, and requests to
      the API. Its cookies and marks prevent other sites from sending the forms of the console.
      ``questions`` has the fields in which visitors describe a guest. ``sessions`` has the tables of
      sessions, of attempts to sign in, and of feeds.

Order of calls
    The admission finds the session of a request, and gives the token of the session to the authentication of
    the REST API. Flask then finds the route, and ``page_request.console_page`` checks the policy rules of the
    page. The route pins the read model or asks the API. At last the template renders the page. Without
    Keystone, the admission makes each visitor the administrator.

Imports
    ``app`` imports the modules of pages. If visitors have to sign in, ``app`` also imports ``admission`` and
    ``signing_in``. No other module of the service imports these modules.

Invariants
    - For each resource class, the used, free, stranded and disabled amounts add up to the capacity. The only
      exception is a host that uses more than its capacity.
    - Each page works without scripts. The browser runs only the two scripts of the console: htmx, and a
      script that opens an answer as a page if htmx cannot show the answer. A page can also load the
      stylesheet, and send forms to the console.
    - The address of a page determines which part of the cloud the page shows, so visitors can keep and share
      addresses.
    - Where the console is not enabled, only the modules that register it are imported.
"""

from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from oslo_config import cfg

from placement.optional_packages import missing_package
from placement.read_model.provider import DISABLED

if TYPE_CHECKING:
    from placement.api.middleware import ApplicationMaker

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


class ConsoleApplication:
    """Makes the console a part of the service, as a :class:`placement.api.middleware.SideApplication`."""

    path = "/console"

    def check_options(self, conf: cfg.ConfigOpts) -> None:
        """Raise ValueError if visitors have to sign in, and a package for this is missing."""
        if conf.console.enabled and conf.api.auth_strategy != "noauth2" and find_spec("cryptography") is None:
            raise missing_package("[console] enabled, where visitors sign in,", "cryptography", "console")

    def find_maker(self, conf: cfg.ConfigOpts) -> "ApplicationMaker | None":
        """Return the function that makes the console; None if the console is not enabled."""
        if not conf.console.enabled:
            return None
        # the packages of the console are loaded only where it is enabled
        from placement_extras.console.app import mount_console

        return mount_console


APPLICATION: Final = ConsoleApplication()
DISABLED_REASON: Final = "console.disabled_reason"
"""The attribute that says why a provider has the trait COMPUTE_STATUS_DISABLED."""
DISABLED_BY: Final = "console.disabled_by"
"""The attribute with the name of the visitor that has set the trait COMPUTE_STATUS_DISABLED."""
ATTRIBUTES_OF_TRAITS: Final = {DISABLED: (DISABLED_REASON, DISABLED_BY)}
"""For each trait, the attributes that a provider loses together with this trait. For example, the reason why
a host is disabled is valid only while the host has COMPUTE_STATUS_DISABLED.
"""

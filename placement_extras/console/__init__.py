"""The console: pages for people, in a browser, below ``/console``.

Nouns
    A *page* shows a part of the cloud. A pure function over the read model decides what it shows, and returns
    frozen dataclasses; a template draws them. The *route* of a page is the thin shell around both. Some pages
    show an answer of the REST API: they *ask* its handlers for it, in the process, with the rights of the
    visitor.

    A *visitor* is the person in front of the browser. Visitors see and do what the policy allows them over
    REST. A page names the rules of all operations that would show the same, and each of them has to allow it.

    A *host* is a tree of resource providers. It is *disabled* if its root has COMPUTE_STATUS_DISABLED, *full*
    if it has CPUs and memory and one of the two is used up, and *open* otherwise. An open host is *silent*
    if its agent has said by when it will report again, and has not done so. What is free on a full host
    is *stranded*: no guest can have it, as each needs both. What is free on a disabled host is not offered.

A worked example
    A host has 64 VCPU, 64 of them used, and 100 of 256 GiB memory used. It is full. Its 156 GiB are
    stranded; so are its 3 TiB of disk. Disabled, it strands nothing: the 156 GiB are disabled.

Parts
    - This module, ``options`` and ``revisions`` register the console with the service. ``assembly`` puts the
      application together, from ``app`` (Flask: blueprints, filters, errors), ``admission`` (sessions of
      requests) and ``signing_in`` (the form, and limits of attempts).
    - One module per page has its route: ``hosts``, ``host_scheduling``, ``capacity``, ``candidates``,
      ``consumers``, ``names`` and ``settings``. Two pages need enough computation for modules of their own:
      ``fleet`` for the list of hosts, ``host`` for the page of one.
    - ``page_request`` has what all routes share: the visitor, the rules, and questions to the API. ``forms``
      has cookies and marks, ``questions`` the fields in which visitors describe a guest, and ``sessions`` the
      tables.

Order of calls
    A request passes the admission, which finds the session and gives its token to the authentication of the
    REST API. Then Flask finds the route, ``page_request.show_page`` checks the rules of the page, and the
    route pins the read model or asks the API. The template comes last. Without Keystone, admission makes
    each visitor the administrator.

Imports
    ``app`` imports the modules of pages, and ``assembly`` imports ``app``, ``admission`` and ``signing_in``.
    Nothing else in the service imports any of them.

What always holds
    - Of each resource class, used, free, stranded and disabled together are the capacity, unless more is used
      than there is.
    - No page needs scripts, and none may run others than the two files of the console: htmx, and a script
      that opens as a page whatever htmx cannot show. Beyond these, browsers are allowed the one stylesheet,
      and forms that lead here.
    - Pages are whole. Everything that changes a page is in its address, so addresses can be kept and shared.
    - Where the console is not enabled, only the modules that register it are imported.
"""

from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from oslo_config import cfg

from placement.optional_packages import missing_package
from placement.read_model.provider import DISABLED

if TYPE_CHECKING:
    from placement.api.middleware import ApplicationMaker


class ConsoleApplication:
    """The console; a :class:`placement.api.middleware.SideApplication`."""

    path = "/console"

    def check_options(self, conf: cfg.ConfigOpts) -> None:
        """:raises ValueError: visitors are to sign in, and what that needs is not installed."""
        if conf.console.enabled and conf.api.auth_strategy != "noauth2" and find_spec("cryptography") is None:
            raise missing_package("[console] enabled, where visitors sign in,", "cryptography", "console")

    def find_maker(self, conf: cfg.ConfigOpts) -> "ApplicationMaker | None":
        """The function that makes the console; None if the configuration wants none."""
        if not conf.console.enabled:
            return None
        from placement_extras.console.assembly import mount_console

        return mount_console


APPLICATION: Final = ConsoleApplication()
DISABLED_REASON: Final = "console.disabled_reason"
"""The attribute that says why a provider has the trait COMPUTE_STATUS_DISABLED."""
DISABLED_BY: Final = "console.disabled_by"
"""The attribute that names the visitor that gave it that trait."""
ATTRIBUTES_OF_TRAITS: Final = {DISABLED: (DISABLED_REASON, DISABLED_BY)}
"""The reason holds for one time that a provider is disabled, so these attributes go with the trait."""

"""The console: pages for people, in a browser, below ``/console``.

Nouns
    A *page* shows a part of the cloud. What it shows is decided by a pure function over the read model, whose
    frozen dataclasses a template draws; its *route* is the thin shell around both. What the REST API answers
    as it is, a page *asks* of the handlers of the API, in the process, as whoever looks at it.

    A *visitor* is who looks. What a visitor may see or do is what the policy allows over REST: a page names
    the rules of all operations that would show the same, and every one of them has to allow it.

    A *host* is a tree of resource providers. It is *disabled* if its root has COMPUTE_STATUS_DISABLED, *full*
    if it has CPUs and memory and one of the two is used up, and *open* otherwise. An open host is *silent*
    if its agent has said by when it will report again, and has not done so. What is free on a full host
    is *stranded*: no guest can have it, as each needs both. What is free on a disabled host is not offered.

A worked example
    A host has 64 VCPU, 64 of them used, and 100 of 256 GiB memory used. It is full. Its 156 GiB are
    stranded; so are its 3 TiB of disk. Disabled, it strands nothing: the 156 GiB are disabled.

What always holds
    - Of each resource class, used, free, stranded and disabled together are the capacity, unless more is used
      than there is.
    - No page needs scripts, and none may run others than the two files of the console (htmx, and what opens
      as a page what htmx cannot show): else browsers are allowed the one stylesheet, and forms that lead
      here. Pages are whole; what changes them is in their address, to be kept and passed on.
    - Where the console is not enabled nothing of it is imported but what it registers.
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
        """What makes the console that the configuration wants; None if it wants none."""
        if not conf.console.enabled:
            return None
        from placement_extras.console.mounting import mount

        return mount


APPLICATION: Final = ConsoleApplication()
DISABLED_REASON: Final = "console.disabled_reason"
"""The attribute that says why a provider has the trait COMPUTE_STATUS_DISABLED."""
DISABLED_BY: Final = "console.disabled_by"
"""The attribute that says who gave it that trait."""
ATTRIBUTES_OF_TRAITS: Final = {DISABLED: (DISABLED_REASON, DISABLED_BY)}
"""Whoever disables a provider again has other reasons, so these go with the trait."""

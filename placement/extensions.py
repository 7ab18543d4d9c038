"""Extension points, called *seams*, through which packages outside of the core add parts to the service.

The core does not import ``placement_extras``. A seam is a group of entry points of installed distributions.
The core loads the objects that are registered in this group. Without any extension, the service has the
Placement API and most of ``/ext/v1``, such as claims, reservations and explanations. The package
``placement_extras``, in the same distribution, registers the extensions that come with the service.

- ``options``: modules with a ``GROUP`` and its ``OPTIONS``, as in :mod:`placement.conf`
- ``rules``: lists of policy rules with their defaults
- ``blueprints``: Flask blueprints of operations below ``/ext/v1``
- ``request_forms``: :class:`placement.schemas.request_form.RequestForm`, fields in the body of a request that
  replace the query string for candidates
- ``applications``: :class:`placement.api.middleware.SideApplication`, WSGI applications with their own paths
- ``commands``: :class:`placement.cmd.common.ManageCommand`, commands of ``placement-manage``
- ``takeovers``: :data:`placement.maintenance.sync.Takeover`, conversions of databases of other programs
- ``tables``: :class:`placement.db.tables.ExtensionTables`, further tables and the migrations that create them
- ``trait_attributes``: mappings from a trait to the names of attributes that a provider loses together with
  this trait
"""

from collections.abc import Mapping
from functools import cache
from importlib.metadata import entry_points
from typing import Any, Final

_GROUP: Final = "placement.extensions."


@cache
def _all_entry_points() -> Any:  # its type differs between versions of Python
    # even a query for one group reads the files of all distributions, and the start of a program needs most
    # groups
    return entry_points()


@cache
def registered_objects(seam: str) -> Mapping[str, Any]:
    """Load the objects that are registered at a seam.

    :returns: the objects by the names of their entry points, in alphabetical order of these names.
    :raises ImportError: an entry point names a module that cannot be imported.
    :raises AttributeError: an entry point names an object that its module does not have.
    """
    found = {each.name: each for each in _all_entry_points().select(group=_GROUP + seam)}
    return {name: found[name].load() for name in sorted(found)}

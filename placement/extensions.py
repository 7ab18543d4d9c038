"""Extension points of the service, to which packages outside of the core add parts.

The core imports no extra. The core reads a seam, which is a group of entry points of installed distributions,
and uses the objects that it finds. Without any extension, the service is the Placement API with claims,
reservations and explanations. In the same distribution, ``placement_extras`` registers everything that the
service comes with.

- ``options``: modules with ``list_opts`` and ``register_opts``, as in :mod:`placement.conf`
- ``rules``: lists of policy rules with their defaults
- ``blueprints``: Flask blueprints of operations below ``/ext/v1``
- ``request_forms``: :class:`placement.schemas.request_form.RequestForm`, ways to ask without a query
- ``applications``: :class:`placement.api.middleware.SideApplication`, WSGI applications below a path
- ``commands``: :class:`placement.cmd.manage.ManageCommand`, commands of ``placement-manage``
- ``takeovers``: :class:`placement.maintenance.sync.Takeover`, databases of other programs
- ``tables``: :class:`placement.db.tables.ExtensionTables`, tables, and migrations that make them
- ``trait_attributes``: mappings of traits to names of attributes, which a provider loses with the trait
"""

from collections.abc import Mapping
from functools import cache
from importlib.metadata import entry_points
from typing import Any, Final

_GROUP: Final = "placement.extensions."


@cache
def registered_objects(seam: str) -> Mapping[str, Any]:
    """Load the objects that are registered at a seam.

    :returns: the objects by the names of their entry points, in alphabetical order of these names.
    :raises ImportError: an entry point names a module that cannot be imported.
    :raises AttributeError: an entry point names an object that its module does not have.
    """
    found = {each.name: each for each in entry_points(group=_GROUP + seam)}
    return {name: found[name].load() for name in sorted(found)}

"""The extensions of the placement service.

The core (``placement``) does not import this package. Each extension registers itself by entry points
(:mod:`placement.extensions`), and uses functions of the core: searches, the read model, handlers of the API.
The distribution contains all extensions.

- ``console`` shows pages for operators in a browser.
- ``planner`` counts how many guests fit, and finds moves that make room (``/ext/v1/capacity``).
- ``flavors`` translates flavors of Nova to requests for allocation candidates.
- ``migration`` moves a cloud from OpenStack Placement to this service, and back. ``migration`` imports a
  database, adopts it in place, or abandons it.
- ``shadow`` also sends the requests for OpenStack Placement to this service, and compares the answers.
- ``openstack`` has commands of the ``openstack`` client for ``/ext/v1``.
"""

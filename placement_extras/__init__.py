"""The extensions of the placement service.

The core (``placement``) does not import this package. Each extension registers itself by entry points
(:mod:`placement.extensions`). Extensions use functions of the core: searches, the read model, and the
handlers of the API. One distribution contains the core and all extensions.

- ``console`` shows web pages for operators and projects.
- ``planner`` counts how many guests fit, and finds moves that make room (``/ext/v1/capacity``).
- ``flavors`` translates flavors of Nova to requests for allocation candidates.
- ``migration`` moves a cloud from OpenStack Placement to this service, and back. For this, ``migration``
  imports a database of OpenStack Placement, adopts it in place, or abandons it.
- ``shadow`` sends requests to OpenStack Placement and to this service, and compares the two answers.
- ``openstack`` has the commands with which the ``openstack`` client uses the API below ``/ext/v1``.
"""

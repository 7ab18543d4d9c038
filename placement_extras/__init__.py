"""Parts of the service beside its core, which imports none of them.

Each registers itself by entry points (:mod:`placement.extensions`) and uses functions of the core: searches,
the read model, handlers of the API. The service is delivered with all of them.

- ``console`` has pages for operators, in a browser.
- ``planner`` counts how many guests fit, and finds moves that make room (``/ext/v1/capacity``).
- ``flavors`` translates flavors of Nova to requests for allocation candidates.
- ``migration`` moves from OpenStack Placement and back: import, adoption in place, abandonment.
- ``shadow`` sends the requests of OpenStack Placement to this service, too, and compares the answers.
- ``openstack`` has commands of the ``openstack`` client for ``/ext/v1``.
"""

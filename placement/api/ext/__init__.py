"""The API ``/ext/v1``, in addition to the API of OpenStack Placement, with a blueprint for each resource.

This API has no microversions. Instead, the document of ``root`` has a version of this API, which grows with
each addition.

Modules
    - ``claims`` finds candidates and claims them. ``reservations`` keeps candidates free for later claims.
      ``explanations`` explains why a request has few candidates or none.
    - ``trees`` shows and writes all providers of a host. ``attributes`` shows and writes named values of a
      provider.
    - ``changes`` tells clients which providers have changed. ``availability`` finds times at which requests
      have room. ``time_events`` lists starts and ends of reservations and ends of claims.
    - ``root`` is the version document.

Imports
    The package may import all of ``placement.api``. Only the application factory imports this package, so
    that this package cannot change the API of OpenStack Placement. The modules ``placement.api.errors`` and
    ``placement.api.auth`` need the prefix ``/ext/v1``, which they import from :mod:`placement.api.paths`.
"""

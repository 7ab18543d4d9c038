"""Our own API, beside that of OpenStack Placement: a blueprint for each resource, below ``/ext/v1``.

This API has no microversions. Its version document (``root``) has its version, which grows with each
addition.

Modules
    - ``claims`` finds candidates and claims them. ``reservations`` holds candidates for later claims.
      ``explanations`` explains why a request has few candidates or none.
    - ``trees`` shows and writes all providers of a host. ``attributes`` shows and writes named values of a
      provider.
    - ``changes`` tells clients which providers have changed.

Imports
    The package may import all of ``placement.api``. Only the application factory imports this package, so
    that additions cannot change the API of OpenStack Placement. Errors and authentication import the prefix
    of its paths from :mod:`placement.api.paths`.
"""

"""Our own API, beside that of OpenStack Placement: a blueprint for each resource, below ``/ext/v1``.

This API has no microversions; its version document (``root``) names its version, which grows with each
addition.

Modules
    - ``claims`` finds candidates and claims them; ``reservations`` claims for later; ``explanations``
      explains.
    - ``trees`` shows and writes all providers of a host; ``attributes`` has values of one provider.
    - ``changes`` tells clients which providers have changed.

Imports
    The package may use all of ``placement.api``. Only the application factory imports this package, so that
    additions cannot change the API of OpenStack Placement. Errors and authentication know its prefix by
    :mod:`placement.api.paths`.
"""

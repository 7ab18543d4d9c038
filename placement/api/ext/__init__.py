"""The API ``/ext/v1``, in addition to the API of OpenStack Placement, with a blueprint for each module.

This API has no microversions. Instead, its version document (:mod:`placement.api.versions`) has a version,
which grows with each addition to the API.

Modules
    - ``claims`` finds candidates and claims them. ``reservations`` reserves resources for later claims, and
      finds times at which there is room for them. ``explanations`` explains why a request has few candidates
      or none.
    - ``trees`` shows and writes all providers of a host, and the attributes of a provider, which are named
      values.
    - ``changes`` lists changed providers, starts and ends of reservations, and ends of claims.

Imports
    This package is allowed to import all modules of ``placement.api``. Only ``placement.api.app`` imports
    this package, so that it cannot change the API of OpenStack Placement. The modules
    ``placement.api.errors`` and ``placement.api.auth`` import the prefix ``/ext/v1`` from
    :mod:`placement.api.context`.
"""

"""Schemas of bodies and query strings, with the microversions that they belong to.

Nouns
    A *schema* reads a body or a query string, or reports a *violation*. A violation has an error message in
    the words of JSON schema, and the keyword of JSON schema that the data violate. A field of a query is
    marked with the microversion that introduced it. A *form* is a field of a body that replaces the query
    string of a request for candidates, such as a flavor; extensions can register forms.

Modules
    - ``base`` has the fields of schemas, and :func:`~placement.schemas.base.load`, which turns the first
      violation into the error of the request. ``terms`` parses values of query strings, such as amounts and
      traits.
    - ``query`` and ``query_candidates`` turn query strings into filters and requests
      (``placement.search.request``).
    - ``resource_provider``, ``inventory`` and ``allocation`` have the bodies of OpenStack Placement's
      resources; ``allocation`` makes a schema for each microversion.
    - ``claim``, ``explanation``, ``reservation``, ``time_events`` and ``tree`` have the bodies and queries of
      ``/ext/v1``, except the query for changes and the body of attributes. ``request_form`` has the interface
      of forms.

The order of calls
    A handler names its schema, and the API calls :func:`~placement.schemas.base.load` with the body. A parser
    of this package then makes objects of ``placement.store`` or ``placement.search``. The read model is used
    later to check whether resource classes and traits exist.

Imports
    The API and the extras import this package. The package imports data classes of the search and the store,
    and does not use a database.
"""

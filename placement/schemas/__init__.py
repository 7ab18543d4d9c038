"""Has the schemas of bodies and query strings, by microversion.

Nouns
    A *schema* reads a body or a query string, or reports a *violation*. A violation has an error message in
    the words of JSON schema, and the keyword of JSON schema that the data violate. A field of a query has a
    mark with the microversion that introduced the field. A *form* is a field of a body, such as a flavor,
    that replaces the query string of a request for candidates. Extensions can register forms.

Modules
    - ``base`` has the fields of schemas, and :func:`~placement.schemas.base.load`, which turns the first
      violation into the error of the request.
    - ``terms`` parses the values in query strings, such as amounts and traits.
    - ``query`` turns query strings into filters of lists. ``candidates`` turns query strings and bodies into
      requests for candidates (``placement.search.request``), and has the parts of bodies with such requests.
    - ``resource_provider``, ``inventory`` and ``allocation`` have the bodies of OpenStack Placement's
      resources. ``allocation`` makes a schema for each microversion.
    - ``claim``, ``reservation`` and ``tree`` have the bodies and queries of ``/ext/v1``, except the query for
      changes, the body of attributes and the body of explanations.
    - ``request_form`` has the interface of forms.

The order of calls
    A handler passes its schema to the API, which calls :func:`~placement.schemas.base.load` with the body.
    Then a parser of this package makes objects of ``placement.store`` or ``placement.search``. Later,
    functions of other packages check with the read model whether resource classes and traits exist.

Imports
    The API and the extras import this package. This package imports data classes of the search and the
    store, but it does not use a database.
"""

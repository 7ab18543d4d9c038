"""Schemas of bodies and query strings, with the microversions that they belong to.

Nouns
    A *schema* reads a body or a query string, and refuses it with a *violation*: the violated keyword and its
    sentence, in the words of JSON schema. A field of a query is marked with the microversion that it came
    with. A *form* is a way to ask for candidates without a query, such as a flavor; extensions register
    forms.

Modules
    - ``base`` has the fields and :func:`~placement.schemas.base.load`, which turns the first violation into
      the error of a request. ``terms`` reads the parts of query strings.
    - ``query`` and ``query_candidates`` make requests of query strings (``placement.search.request``).
    - ``resource_provider``, ``inventory`` and ``allocation`` have the bodies of OpenStack Placement's
      resources; ``allocation`` makes a schema for each microversion.
    - ``claim``, ``explanation``, ``reservation``, ``tree`` and ``changes`` have those of ``/ext/v1``;
      ``request_form`` is the seam for forms.

The order of calls
    A handler names its schema, and the API calls :func:`~placement.schemas.base.load` with the body. A parser
    here then makes values of ``placement.store`` or ``placement.search``. Names of resource classes and
    traits are checked later, under the turn of the read model.

Imports
    The API and the extras import it. The package imports nouns of the search and the store, never a database.
"""

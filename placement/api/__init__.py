"""The REST API: Flask blueprints with handlers, and the WSGI layers around them.

Nouns
    A *handler* is the function that answers one operation, such as ``GET /traits``. A *layer* is a WSGI
    middleware around the handlers. The *service* is the object with everything that all requests of a worker
    share. The *caller* is the user or service that has sent a request.

Modules
    Each resource of OpenStack Placement has a module with its name, with two exceptions: ``allocations`` also
    has the usages and the reshaper, and ``resource_providers`` also has the aggregates. Modules for the
    resources of ``/ext/v1`` are in ``ext``, except its version document. Only ``app`` imports the modules of
    resources.
    - ``call`` has the class of requests, functions that make answers, and the decorator of handlers. It finds
      the microversion of a request. ``errors`` makes error answers, and ``versions`` the version documents.
    - ``middleware`` puts the layers together: ``auth`` with ``identity`` (Keystone), ``request_log``,
      ``tracing``, ``metrics``, ``garbage``, and ``app``.
    - ``service`` has the objects that all requests of a worker share, and explains empty answers in the log.
    - ``health`` checks the database for the health check. ``context`` has the class of callers, keys of the
      WSGI environment, and the prefix ``/ext/v1``.

The order of calls
    A request passes the layers in this order: metrics and health check, request log, traces, side
    applications such as the console, CORS, authentication, and Flask. In Flask, ``call`` finds the
    microversion. The decorator of the handler checks the version and the media types, makes sure that the
    database is ready, and checks the policy. The handler parses the request with ``placement.schemas``. It
    reads ``placement.read_model`` or writes with ``placement.store``, and returns an answer. If the handler
    raises an exception, ``errors`` makes an answer from it.

Imports
    The commands, the web servers and ``placement_extras`` import this package. The package is allowed to
    import the schemas, the search, the store, the read model and the database. Its subpackage ``ext`` is
    allowed to import the whole package. Only ``app`` imports ``ext``.
"""

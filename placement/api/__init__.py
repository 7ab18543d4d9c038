"""The REST API: Flask blueprints with handlers, and the WSGI layers around them.

Nouns
    A *handler* is the function that answers one operation, such as ``GET /traits``. A *layer* is a WSGI
    middleware. The *service* object has everything that all requests of a worker share. The *caller* is the
    identity behind a request.

Modules
    Each resource of OpenStack Placement has a module with its name. Modules for the resources of ``/ext/v1``
    are in ``ext``. Only ``app`` imports the modules of resources.
    - ``call`` has the class of requests, functions that make answers, and the decorator of handlers.
      ``errors`` renders errors, and ``versions`` finds the microversion of a request.
    - ``middleware`` puts the layers together: ``auth`` with ``identity`` (Keystone), ``request_log``,
      ``tracing``, ``metrics`` with ``metrics_sharing``, ``garbage``, and ``app``.
    - ``service`` has the objects that a worker's requests share, and explains empty answers in the log.
    - ``health`` is a backend of the health check, ``context`` represents the caller, and ``paths`` has the
      prefix ``/ext/v1``.

The order of calls
    A request passes the layers from outside to inside: metrics and health check, request log, traces, side
    applications such as the console, CORS, authentication, and Flask. In Flask, ``versions`` finds the
    microversion. The decorator of the handler checks version, media types and policy, and makes sure that the
    database is ready. The handler parses the request with ``placement.schemas``, reads
    ``placement.read_model`` or writes with ``placement.store``, and returns an answer. ``errors`` turns
    exceptions of the service into answers.

Imports
    The commands, the web servers and the extras import this package. The package may import schemas, search,
    store, read model and database. ``ext`` may import the whole package, and only ``app`` imports ``ext``.
"""

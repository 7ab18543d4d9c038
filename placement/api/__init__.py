"""The REST API: Flask blueprints with handlers, and the WSGI layers around them.

Nouns
    A *handler* is the function that answers one operation, such as ``GET /traits``. A *layer* is a WSGI
    middleware. The *service* has the objects that all requests of a worker share. The *caller* is the
    identity behind a request.

Modules
    Each resource of OpenStack Placement has a module with its name. Modules for the resources of ``/ext/v1``
    are in ``ext``. Only ``app`` imports these modules.
    - ``call`` has the class of requests, functions for answers, and the decorator of handlers. ``errors``
      renders errors, ``versions`` finds microversions.
    - ``middleware`` puts the layers together: ``auth`` with ``identity`` (Keystone), ``request_log``,
      ``tracing``, ``metrics`` with ``metrics_sharing``, ``garbage``, and ``app``. Each layer is a module that
      only ``middleware`` imports.
    - ``service`` has the shared objects of a worker, and explains empty answers in the log.
    - ``health`` is a backend of the health check, ``context`` has the caller, ``paths`` the prefix
      ``/ext/v1``.

The order of calls
    A request passes the layers from outside to inside: health check and metrics, request log, traces, side
    applications such as the console, CORS, authentication, Flask. In Flask, ``versions`` finds the
    microversion. The decorator of the handler checks version, media types and policy, and makes the service
    prepare the database. The handler parses the request with ``placement.schemas``, reads
    ``placement.read_model`` or writes with ``placement.store``, and returns an answer. ``errors`` turns
    exceptions of the service into answers.

Imports
    The commands, the web servers and the extras import this package. The package may import schemas, search,
    store, read model and database. ``ext`` may import the whole package, and only ``app`` imports ``ext``.
"""

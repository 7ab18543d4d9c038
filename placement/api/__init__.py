"""The REST API: Flask blueprints with handlers that parse, check, call and serialise.

Nouns
    A *handler* is the function of one operation: a method and a path. A *layer* is a WSGI middleware. The
    *service* has the parts that all requests of a worker share. The *caller* is the identity behind a
    request.

Modules
    Each resource of OpenStack Placement has a module of its name; modules of the resources of ``/ext/v1`` are
    in ``ext``. Only ``app`` imports these modules: an operation is found by its path.
    - ``call`` has the request and the answers, and the decorator of handlers. ``errors`` renders errors,
      ``versions`` finds microversions.
    - ``middleware`` puts the layers together: ``auth`` with ``identity`` (Keystone), ``request_log``,
      ``tracing``, ``metrics`` with ``metrics_sharing``, ``garbage``, and ``app``. Each layer is a module that
      only ``middleware`` imports.
    - ``service`` has the parts of a worker, and explains empty answers in the log.
    - ``health`` is a backend of the health check, ``context`` the caller, ``paths`` the prefix of our own
      API.

The order of calls
    A request passes the layers from outside to inside: health check and metrics, request log, traces, side
    applications such as the console, CORS, authentication, Flask. There ``versions`` finds the microversion.
    The decorator checks version, media types and policy, and has the service prepare the database. The
    handler parses with ``placement.schemas``, reads ``placement.read_model`` or writes with
    ``placement.store``, and answers. An exception of the service becomes an error in ``errors``.

Imports
    The commands, the web servers and the extras import it. The package imports every package below. ``ext``
    may use all of it, and nothing but ``app`` imports ``ext``.
"""

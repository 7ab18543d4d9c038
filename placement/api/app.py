"""The Flask application: one blueprint a resource.

The whole API, as a table, is what ``flask routes`` prints; each operation stands
at its handler, in the module of its resource.
"""

from typing import Final

from flask import Flask

from placement import extensions
from placement.api import (
    aggregates,
    allocation_candidates,
    allocations,
    call,
    errors,
    inventories,
    reshaper,
    resource_classes,
    resource_providers,
    traits,
    usages,
    versioning,
)
from placement.api.ext import attributes, changes, claims, explanations, reservations, trees
from placement.api.ext import root as ext

_MAX_BODY: Final = 64 * 1024 * 1024

BLUEPRINTS: Final = (
    versioning.blueprint,
    resource_providers.blueprint,
    inventories.blueprint,
    aggregates.blueprint,
    traits.blueprint,
    resource_classes.blueprint,
    allocations.blueprint,
    allocation_candidates.blueprint,
    usages.blueprint,
    reshaper.blueprint,
    ext.blueprint,
    explanations.blueprint,
    claims.blueprint,
    reservations.blueprint,
    attributes.blueprint,
    changes.blueprint,
    trees.blueprint,
)


def create_app() -> Flask:
    """All operations of the API; whose they are, each request says (:func:`placement.api.call.provide`)."""
    app = Flask("placement", static_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = _MAX_BODY
    app.url_map.merge_slashes = False
    versioning.install(app)
    errors.install(app)
    app.before_request(call.check_body_headers)
    for blueprint in (*BLUEPRINTS, *extensions.registered_objects("blueprints").values()):
        app.register_blueprint(blueprint)
    for rule in app.url_map.iter_rules():
        # werkzeug answers HEAD wherever there is a GET; the API does not
        (rule.methods or set()).discard("HEAD")
    return app

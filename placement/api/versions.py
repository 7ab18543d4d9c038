"""The version documents: at ``/``, the supported microversions, and at ``/ext/v1`` the version of that API.

The documents need no token. The document at ``/ext/v1`` shows clients that the service has this API.
"""

import time
from typing import Final

from flask import Blueprint, Response

from placement import microversion
from placement.api.call import ApiRequest, mount_prefix
from placement.api.context import EXT
from placement.conf import installed_version

EXT_VERSION: Final = "1.27"
"""The version of the API ``/ext/v1``. The minor number grows with each addition; nothing is ever removed."""

# the release is read only once: after an upgrade of the package, a running worker still runs its old release
_RELEASE: Final = installed_version()

blueprint = Blueprint("versions", __name__)


@blueprint.get("/", provide_automatic_options=False)
def show_versions() -> Response:
    """Show the version document. Of OpenStack Placement's operations, only this one needs no token."""
    document = {
        "id": "v1.0",
        "max_version": microversion.text(microversion.MAX),
        "min_version": microversion.text(microversion.MIN),
        "status": "CURRENT",
        "links": [{"rel": "self", "href": ""}],
    }
    return ApiRequest().json_answer({"versions": [document]}, time.time())


@blueprint.get(EXT, provide_automatic_options=False)
def show_ext_version() -> Response:
    """Show the version document of ``/ext/v1``."""
    document = {
        "id": "v1",
        "max_version": EXT_VERSION,
        "min_version": "1.0",
        "status": "CURRENT",
        "links": [{"rel": "self", "href": mount_prefix() + EXT}],
        "release": _RELEASE,
    }
    return ApiRequest().json_answer({"version": document})

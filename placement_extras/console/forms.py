"""Protects forms that change data, so that only a page of the console in the same browser can send them.

The cookie of a browser has a secret, and each form contains a mark that is derived from this secret. If a
browser has no cookie yet, the page that contains the form sets the cookie.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from flask import Response, current_app, g, request
from werkzeug.http import parse_cookie

from placement.exceptions import Forbidden
from placement_extras.console import sessions

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment

COOKIE: Final = "__Host-placement-console"
"""Name of the cookie. Browsers send a cookie with such a name only over HTTPS or to their own machine, and
only to the host that has set the cookie.
"""
PLAIN_COOKIE: Final = "placement-console"
"""Name of the cookie if visitors need not sign in, because such a console is perhaps used without HTTPS."""
SIGNS_IN: Final = "SIGNS_IN"
"""The key, in the application's configuration, of the flag that visitors have to sign in."""

_STALE: Final = (
    "The form was out of date, or your browser did not keep the cookie, which needs HTTPS. Please try again."
)


def field_texts(fields: Mapping[str, str], names: Iterable[str], longest: int) -> dict[str, str]:
    """Return the texts of these fields of a form, each cut to at most ``longest`` characters."""
    return {name: fields.get(name, "").strip()[:longest] for name in names}


def secret_of(environ: "WSGIEnvironment", name: str) -> str | None:
    """Return the value of the cookie with that name, if the value has the form of a secret."""
    sent = environ.get("HTTP_COOKIE", "").encode("latin-1")
    # cookies of other applications can contain any bytes. These bytes must not cause an error, and must not
    # vanish from the name of such a cookie.
    found = parse_cookie(sent.decode("ascii", "backslashreplace")).get(name)
    return found if sessions.is_one(found) else None


def form_mark() -> str:
    """Return the mark for a form on this page. The mark proves that the form is from the console."""
    secret = secret_of(request.environ, _name()) or g.get("new_secret")
    if secret is None:
        # all forms of a page have the same secret, which give_secret() sends to the browser
        secret = g.new_secret = sessions.new_secret()
    return sessions.form_mark(secret)


def check_form() -> None:
    """Raise Forbidden for a request without the mark of a form of the console."""
    secret = secret_of(request.environ, _name())
    # the mark alone protects browsers that do not send this header
    from_here = request.headers.get("Sec-Fetch-Site", "same-origin") == "same-origin"
    if not from_here or secret is None or not sessions.is_marked(secret, request.form.get("mark", "")):
        raise Forbidden(_STALE)


def give_secret(response: Response) -> Response:
    """Return the response; add the cookie if a form on the page needs it and the browser does not have it."""
    if "new_secret" in g:
        keep_secret(response, g.new_secret)
    return response


def keep_secret(response: Response, secret: str) -> None:
    """Set a cookie with the secret of this browser. The browser keeps the cookie until it is closed."""
    # with "Lax", the browser sends the cookie if a visitor follows a link of another site, but not if another
    # site sends a form
    secure = current_app.config[SIGNS_IN]
    response.set_cookie(_name(), secret, secure=secure, httponly=True, samesite="Lax", path="/")


def forget_secret(response: Response) -> None:
    """Delete the cookie with the secret."""
    secure = current_app.config[SIGNS_IN]
    response.delete_cookie(_name(), secure=secure, httponly=True, samesite="Lax", path="/")


def _name() -> str:
    return COOKIE if current_app.config[SIGNS_IN] else PLAIN_COOKIE

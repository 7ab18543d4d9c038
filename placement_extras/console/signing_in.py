"""The pages ``/console/sign-in`` and ``/console/sign-out``."""

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from ipaddress import IPv6Address, ip_address
from threading import BoundedSemaphore
from typing import Final

from flask import Blueprint, Response, current_app, render_template, request

from placement.api.auth import KeystoneAuth
from placement.api.context import CannotAsk, SignInRefused
from placement.api.service import PlacementService
from placement.exceptions import Forbidden
from placement_extras.console import admission, page_request, sessions
from placement_extras.console.page_request import redirect_to, service_of

LOG = logging.getLogger(__name__)

blueprint = Blueprint("signing_in", __name__)

IDENTITY: Final = "placement_extras.console.identity"
"""The key, in the application's configuration, of the client of the Identity service, which signs visitors
in.
"""
ROOM: Final = "placement_extras.console.room"
"""The key, in the application's configuration, of a semaphore that limits the number of threads which wait
for the Identity service. Otherwise, all threads of the worker could wait if the Identity service hangs.
"""

_MAX_SECRET: Final = 4096
# a whole office or a proxy can have one address, so an address has more attempts than a user name
_OF_ONE_NAME: Final = 5
"""Maximum number of attempts to sign in with one name from one address, within :data:`~.admission.WINDOW`."""
_OF_ONE_ADDRESS: Final = 50
"""Maximum number of attempts to sign in from one address, within :data:`~.admission.WINDOW`."""
_WITH_PORT: Final = re.compile(r"(?:\[([^]]*)\]|([^:]*))(?::\d*)?")
_HOST_BITS: Final = 64  # the bits of an IPv6 address that a client can choose freely

_WRONG: Final = (
    "The Identity service refused these credentials. Check the name, the domain, the secret and the project."
)
_TOO_OFTEN: Final = "There were too many attempts to sign in. Please wait five minutes."
_NO_ROOM: Final = "Other visitors are signing in at this moment. Please try again."
_AWAY: Final = "The Identity service is temporarily unavailable. Please try again later."
_MISSING: Final = (
    "Please fill in the name and the password, or the id and the secret of an application credential."
)


@dataclass(frozen=True, slots=True)
class SignInForm:
    """The fields that a visitor has typed, without secrets; the form shows them again after a refusal."""

    username: str = ""
    user_domain: str = "Default"
    project: str = ""
    project_domain: str = "Default"
    application_credential: str = ""

    @classmethod
    def from_fields(cls, fields: Mapping[str, str]) -> "SignInForm":
        """Return the fields of the form in the request."""
        return cls(**page_request.field_texts(fields, cls.__slots__))

    @property
    def name(self) -> str:
        """The user name or credential id for which attempts are counted."""
        return self.application_credential or f"{self.user_domain}/{self.username}"

    def auth_credentials(self, secret: str) -> dict[str, str] | None:
        """Return the arguments with which keystoneauth signs in; None if a necessary field is empty."""
        if not secret:
            return None
        if self.application_credential:
            return {
                "application_credential_id": self.application_credential,
                "application_credential_secret": secret,
            }
        if not self.username:
            return None
        found = {"username": self.username, "password": secret, "user_domain_name": self.user_domain}
        if self.project:
            found |= {"project_name": self.project, "project_domain_name": self.project_domain}
        return found


@blueprint.get(admission.SIGN_IN)
def show_form() -> Response:
    """Show the form to sign in, and set the cookie. The console accepts the form only with this cookie."""
    return _form_page(SignInForm())


@blueprint.post(admission.SIGN_IN)
def sign_in() -> Response:
    """Sign the visitor in, and redirect to the page that the visitor asked for."""
    form = SignInForm.from_fields(request.form)
    try:
        page_request.check_form()
    except Forbidden as error:
        return _form_page(form, error.detail, HTTPStatus.FORBIDDEN)
    # the form has a field for the password and one for the secret of an application credential; visitors fill
    # only one of these two fields
    secret = (request.form.get("password") or request.form.get("application_secret") or "")[:_MAX_SECRET]
    credentials = form.auth_credentials(secret)
    if credentials is None:
        return _form_page(form, _MISSING, HTTPStatus.BAD_REQUEST)
    service = service_of(request.environ)
    service.prepare_database()
    address = counted_as(request.remote_addr or "")
    identity: KeystoneAuth = current_app.config[IDENTITY]
    # attempts are counted for each pair of name and address. With a count for the name alone, strangers could
    # lock out a user by wrong attempts.
    who = sessions.subject_digest(identity.own_secret, "name", form.name.casefold(), address)
    limits = {
        who: _OF_ONE_NAME,
        sessions.subject_digest(identity.own_secret, "address", address): _OF_ONE_ADDRESS,
    }
    room: BoundedSemaphore = current_app.config[ROOM]
    # a refusal for lack of a free thread is not counted as an attempt
    if not room.acquire(blocking=False):
        return _form_page(form, _NO_ROOM, HTTPStatus.SERVICE_UNAVAILABLE)
    try:
        if not _count_attempt(service, limits):
            LOG.warning(
                "too many attempts to sign in to the console from %s, so this one was refused",
                request.remote_addr,
            )
            answer = _form_page(form, _TOO_OFTEN, HTTPStatus.TOO_MANY_REQUESTS)
            answer.headers["Retry-After"] = f"{admission.WINDOW:.0f}"
            return answer
        access = identity.sign_in(credentials)
    except SignInRefused:
        LOG.warning("a visitor from %s could not sign in to the console", request.remote_addr)
        return _form_page(form, _WRONG, HTTPStatus.UNAUTHORIZED)
    except CannotAsk:
        return _form_page(form, _AWAY, HTTPStatus.SERVICE_UNAVAILABLE)
    finally:
        room.release()
    # the attempts of the address still count, because an attacker with an account could otherwise reset them
    service.database.write(lambda tx: sessions.forget_attempts(tx, who))
    # each session has a new secret, so that a secret which an attacker has put into the browser is worthless
    before = page_request.secret_of(request.environ, page_request.COOKIE)
    if before is not None:
        admission.end_session(service, before)
    session = admission.begin_session(service, access)
    answer = _redirect_to(_next_page(request.args.get("next", "")))
    page_request.keep_secret(answer, session.secret)
    return answer


@blueprint.post("/console/sign-out")
def sign_out() -> Response:
    """End the session of the visitor."""
    page_request.check_form()
    secret = page_request.secret_of(request.environ, page_request.COOKIE)
    if secret is not None:
        service = service_of(request.environ)
        service.prepare_database()
        admission.end_session(service, secret)
    answer = _redirect_to(admission.SIGN_IN)
    page_request.forget_secret(answer)
    return answer


def _form_page(form: SignInForm, error: str = "", status: HTTPStatus = HTTPStatus.OK) -> Response:
    page = render_template("sign_in.html", form=form, error=error, next=request.args.get("next", ""))
    return Response(page, status)


def _count_attempt(service: PlacementService, limits: Mapping[str, int]) -> bool:
    """Count an attempt to sign in and return True; return False, without a write, if a limit is reached."""
    with service.database.read() as conn:
        if not sessions.may_attempt(conn, limits, admission.WINDOW):
            return False
    return service.database.write(lambda tx: sessions.count_attempt(tx, limits, admission.WINDOW))


def counted_as(sent: str) -> str:
    """Return the part of a client's address under which attempts to sign in are counted.

    :param sent: an address, or a list of addresses. Only the last address of a list is from a trusted proxy.
        Perhaps the client has invented the other addresses. Some proxies add the port.
    :returns: the address. For IPv6, the network with the first 64 bits, because a client can use all
        addresses of its network.
    """
    text = sent.rpartition(",")[2].strip()
    found = _WITH_PORT.fullmatch(text)
    try:
        address = ip_address(found[1] or found[2] if found else text)
    except ValueError:
        # any other text, such as the path of a socket, is returned unchanged
        return text
    if not isinstance(address, IPv6Address):
        return str(address)
    # a server that listens on an IPv6 address sees the address of an IPv4 client in this form
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(IPv6Address(int(address) >> _HOST_BITS << _HOST_BITS))


def _next_page(wanted: str) -> str:
    """Return the wanted page if it belongs to the console and is valid in a header, else the first page."""
    # without this check, a link to the console could lead to another site
    return wanted if wanted.startswith("/console/") and wanted.isprintable() else "/console"


def _redirect_to(path: str) -> Response:
    return redirect_to(request.environ.get("SCRIPT_NAME", "") + path)

"""``/console/sign-in`` and ``/console/sign-out``."""

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from ipaddress import IPv6Address, ip_address
from threading import BoundedSemaphore
from typing import Final

from flask import Blueprint, Response, current_app, redirect, render_template, request

from placement.api.auth import KeystoneAuth
from placement.api.identity import CannotAsk, SignInRefused
from placement.api.service import PlacementService
from placement.exceptions import Forbidden
from placement_extras.console import admission, forms, sessions
from placement_extras.console.page_request import service_of

LOG = logging.getLogger(__name__)

blueprint = Blueprint("signing_in", __name__)

IDENTITY: Final = "placement_extras.console.identity"
"""Where the configuration of the application has who signs visitors in."""
ROOM: Final = "placement_extras.console.room"
"""Where it has the semaphore that each holds who waits for that: an Identity service that hangs may have so
many threads of a worker, however many strangers ask."""

_MAX_NAME: Final = 255
_MAX_SECRET: Final = 4096
_OF_ONE_NAME: Final = 5
_OF_ONE_ADDRESS: Final = 50
_WITH_PORT: Final = re.compile(r"(?:\[([^]]*)\]|([^:]*))(?::\d*)?")
_HOST_BITS: Final = 64  # of an IPv6 address, which a client chooses as it likes

_WRONG: Final = (
    "The Identity service does not know you by this. Check the name, the domain, the secret and the project."
)
_TOO_OFTEN: Final = "There were too many attempts to sign in. Please wait five minutes."
_NO_ROOM: Final = "Others are signing in at this moment. Please try again."
_AWAY: Final = "The Identity service is temporarily unavailable. Please try again later."
_MISSING: Final = (
    "Please fill in the name and the password, or the id and the secret of an application credential."
)


@dataclass(frozen=True, slots=True)
class SignInForm:
    """What somebody typed, but for secrets: shown again when it was wrong."""

    username: str = ""
    user_domain: str = "Default"
    project: str = ""
    project_domain: str = "Default"
    application_credential: str = ""

    @classmethod
    def of(cls, fields: Mapping[str, str]) -> "SignInForm":
        """The form as it was sent."""
        return cls(**forms.texts(fields, cls.__slots__, _MAX_NAME))

    @property
    def name(self) -> str:
        """Who wants to sign in."""
        return self.application_credential or f"{self.user_domain}/{self.username}"

    def credentials(self, secret: str) -> dict[str, str] | None:
        """What keystoneauth takes; None where something is missing."""
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
def ask() -> Response:
    """The form, and with it a cookie, without which it is not accepted."""
    return _form(SignInForm())


@blueprint.post(admission.SIGN_IN)
def sign_in() -> Response:
    """Begin a session, and go on to what was looked for."""
    form = SignInForm.of(request.form)
    try:
        forms.check()
    except Forbidden as error:
        return _form(form, error.detail, HTTPStatus.FORBIDDEN)
    secret = (request.form.get("password") or request.form.get("application_secret") or "")[:_MAX_SECRET]
    credentials = form.credentials(secret)
    if credentials is None:
        return _form(form, _MISSING, HTTPStatus.BAD_REQUEST)
    service = service_of(request.environ)
    service.prepare_database()
    address = counted_as(request.remote_addr or "")
    identity: KeystoneAuth = current_app.config[IDENTITY]
    who = sessions.subject(identity.own_secret, "name", form.name.casefold(), address)
    limits = {who: _OF_ONE_NAME, sessions.subject(identity.own_secret, "address", address): _OF_ONE_ADDRESS}
    room: BoundedSemaphore = current_app.config[ROOM]
    if not room.acquire(blocking=False):
        return _form(form, _NO_ROOM, HTTPStatus.SERVICE_UNAVAILABLE)
    try:
        if not _counted(service, limits):
            LOG.warning("too many attempts to sign in to the console from %s", request.remote_addr)
            answer = _form(form, _TOO_OFTEN, HTTPStatus.TOO_MANY_REQUESTS)
            answer.headers["Retry-After"] = f"{admission.WINDOW:.0f}"
            return answer
        access = identity.sign_in(credentials)
    except SignInRefused:
        LOG.warning("somebody from %s could not sign in to the console", request.remote_addr)
        return _form(form, _WRONG, HTTPStatus.UNAUTHORIZED)
    except CannotAsk:
        return _form(form, _AWAY, HTTPStatus.SERVICE_UNAVAILABLE)
    finally:
        room.release()
    service.database.write(lambda tx: sessions.forget_attempts(tx, who))
    before = forms.secret_of(request.environ, forms.COOKIE)
    if before is not None:
        admission.end(service, before)
    session = admission.begin(service, access)
    answer = _to(_next(request.args.get("next", "")))
    forms.keep(answer, session.secret)
    return answer


@blueprint.post("/console/sign-out")
def sign_out() -> Response:
    """End the session."""
    forms.check()
    secret = forms.secret_of(request.environ, forms.COOKIE)
    if secret is not None:
        service = service_of(request.environ)
        service.prepare_database()
        admission.end(service, secret)
    answer = _to(admission.SIGN_IN)
    forms.forget(answer)
    return answer


def _form(form: SignInForm, error: str = "", status: HTTPStatus = HTTPStatus.OK) -> Response:
    page = render_template("sign_in.html", form=form, error=error, next=request.args.get("next", ""))
    return Response(page, status)


def _counted(service: PlacementService, limits: Mapping[str, int]) -> bool:
    """Whether an attempt is within the limits, and was counted; who is refused writes nothing."""
    with service.database.read() as conn:
        if not sessions.may_attempt(conn, limits, admission.WINDOW):
            return False
    return service.database.write(lambda tx: sessions.attempt(tx, limits, admission.WINDOW))


def counted_as(sent: str) -> str:
    """For which address an attempt is counted.

    :param sent: what the server says, or a header that proxies add to: of a list only the last address is
        what a proxy has seen; those before it the client may have made up. Some proxies add the port.
    :returns: the address; of one of IPv6 the network of 64 bits.
    """
    text = sent.rpartition(",")[2].strip()
    found = _WITH_PORT.fullmatch(text)
    try:
        address = ip_address(found[1] or found[2] if found else text)
    except ValueError:
        return text
    if not isinstance(address, IPv6Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(IPv6Address(int(address) >> _HOST_BITS << _HOST_BITS))


def _next(wanted: str) -> str:
    """The page that somebody wanted to see, if it is one of ours, and can stand in a header."""
    return wanted if wanted.startswith("/console/") and wanted.isprintable() else "/console"


def _to(path: str) -> Response:
    answer = redirect(request.environ.get("SCRIPT_NAME", "") + path, HTTPStatus.SEE_OTHER, Response)
    assert isinstance(answer, Response)
    return answer

"""Who hangs when he is asked one thing is asked other things nevertheless."""

import io
import json
from collections.abc import Callable

import pytest
from keystoneauth1 import exceptions as ks_exceptions
from requests import Response

from placement.api.identity import CannotAsk, SignInRefused, _IdentityServer


class Fake:
    """What the library asks, and a plugin: calls one of the other while it answers about a token."""

    def __init__(self) -> None:
        self.meanwhile: Callable[[], object] = lambda: None
        self.refusal: Exception = ks_exceptions.ConnectTimeout("a directory hangs")

    def verify_token(self, token: str) -> str:
        meanwhile, self.meanwhile = self.meanwhile, lambda: None
        meanwhile()
        return token

    def get_access(self, session: object) -> object:
        raise self.refusal


def test_strangers_who_sign_in_where_nobody_answers_keep_no_token_from_being_checked():
    fake = Fake()
    server = _IdentityServer(fake)
    with pytest.raises(CannotAsk):
        server.request_access(fake, None)
    fake.meanwhile = lambda: server.verify_token("two at once")
    assert server.verify_token("one") == "one"


def test_a_password_that_does_not_suffice_alone_is_refused_as_a_wrong_one():
    fake = Fake()
    answer = Response()
    receipt = {"methods": ["password"], "expires_at": "2026-01-01T00:00:00.000000Z"}
    content = {"receipt": receipt, "required_auth_methods": [["password", "totp"]]}
    answer.raw = io.BytesIO(json.dumps(content).encode())
    fake.refusal = ks_exceptions.MissingAuthMethods(answer)
    with pytest.raises(SignInRefused):
        _IdentityServer(fake).request_access(fake, None)

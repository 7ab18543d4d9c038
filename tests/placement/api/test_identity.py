"""Tests that the service asks the Identity service further questions while one kind of question hangs."""

import io
import json
from collections.abc import Callable

import pytest
from keystoneauth1 import exceptions as ks_exceptions
from requests import Response

from placement.api.context import CannotAsk, SignInRefused
from placement.api.identity import IdentityServer


class Fake:
    """A fake of the library's server and of its plugin; makes another call during the check of a token."""

    def __init__(self) -> None:
        self.meanwhile: Callable[[], object] = lambda: None
        self.refusal: Exception = ks_exceptions.ConnectTimeout("a directory hangs")

    def verify_token(self, token: str) -> str:
        meanwhile, self.meanwhile = self.meanwhile, lambda: None
        meanwhile()
        return token

    def get_access(self, session: object) -> object:
        raise self.refusal


def test_sign_ins_at_a_hanging_identity_service_do_not_block_checks_of_tokens():
    fake = Fake()
    server = IdentityServer(fake)
    with pytest.raises(CannotAsk):
        server.request_access(fake, None)
    fake.meanwhile = lambda: server.verify_token("two at once")
    assert server.verify_token("one") == "one"


def test_a_password_that_needs_a_second_factor_is_refused_as_wrong():
    fake = Fake()
    answer = Response()
    receipt = {"methods": ["password"], "expires_at": "2026-01-01T00:00:00.000000Z"}
    content = {"receipt": receipt, "required_auth_methods": [["password", "totp"]]}
    answer.raw = io.BytesIO(json.dumps(content).encode())
    fake.refusal = ks_exceptions.MissingAuthMethods(answer)
    with pytest.raises(SignInRefused):
        IdentityServer(fake).request_access(fake, None)

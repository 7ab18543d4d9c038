"""Who hangs when he is asked one thing is asked other things nevertheless."""

from collections.abc import Callable

import pytest
from keystoneauth1 import exceptions as ks_exceptions

from placement.api.identity import CannotAsk, _IdentityServer


class Fake:
    """What the library asks, and a plugin: calls one of the other while it answers about a token."""

    def __init__(self) -> None:
        self.meanwhile: Callable[[], object] = lambda: None

    def verify_token(self, token: str) -> str:
        meanwhile, self.meanwhile = self.meanwhile, lambda: None
        meanwhile()
        return token

    def get_access(self, session: object) -> object:
        raise ks_exceptions.ConnectTimeout("a directory hangs")


def test_strangers_who_sign_in_where_nobody_answers_keep_no_token_from_being_checked():
    fake = Fake()
    server = _IdentityServer(fake)
    with pytest.raises(CannotAsk):
        server.access(fake, None)
    fake.meanwhile = lambda: server.verify_token("two at once")
    assert server.verify_token("one") == "one"

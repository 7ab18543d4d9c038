"""Reads the text of pages of the console, as people read it."""

import re
from http import HTTPStatus
from typing import Any
from urllib.parse import urlencode

from werkzeug.test import Client

READER = {"X-Auth-Token": "somebody:project", "X-Roles": "reader,member"}
"""Headers of a reader of one project."""


def read_page(client: Client, path: str, **options: Any) -> str:
    """The words of a page. The options are those of the request."""
    answer = client.get(path, **options)
    assert answer.status_code == HTTPStatus.OK, answer.text
    return _words(answer.text)


def read_answer(client: Client, path: str, status: HTTPStatus = HTTPStatus.OK, /, **parameters: str) -> str:
    """The words of a page below ``/console`` that shows an answer, including its quoted texts."""
    answer = client.get(f"/console/{path}?{urlencode(parameters)}")
    assert answer.status_code == status, answer.text
    return _words(answer.text).replace("&#34;", '"').replace("&#39;", "'")


def _words(page: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", page)).replace("\N{NO-BREAK SPACE}", " ")

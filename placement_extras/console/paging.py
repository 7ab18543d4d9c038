"""Long lists in pages."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from flask import request

T = TypeVar("T")

_MAX_PAGE: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class ListPage(Generic[T]):
    """The rows of one page of a list, which page it is, from 1 on, and how many there are."""

    rows: tuple[T, ...]
    page: int
    pages: int
    total: int


def cut(rows: Sequence[T], number: int, per_page: int) -> ListPage[T]:
    """One page of a list. A page behind the last one is the last one; an empty list has one page."""
    pages = max(1, -(-len(rows) // per_page))
    number = min(max(1, number), pages)
    return ListPage(tuple(rows[(number - 1) * per_page : number * per_page]), number, pages, len(rows))


def asked(name: str = "page") -> int:
    """The number of a page that the present request is for."""
    return number_of(request.args, name)


def number_of(arguments: Mapping[str, str], name: str = "page") -> int:
    """The number of a page that a query string has; 1 where it has none."""
    text = arguments.get(name, "")
    return min(max(1, int(text[:9])), _MAX_PAGE) if text.isascii() and text.isdigit() else 1

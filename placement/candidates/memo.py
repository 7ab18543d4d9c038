"""What a search found before, root by root, for as long as nothing in the tree changed.

Schedulers ask for the same few flavours all day, and between two questions only
some trees changed. What was asked once is only noted; from the second time on the
answers are kept. A memo belongs to one parsed request (the parser hands out
the same object for the same query) and holds what each tree had to offer at
which revision. Where providers share across trees, nothing is kept: what a tree
offers then depends on others.
"""

from collections import OrderedDict
from collections.abc import Iterator
from typing import Final

from placement.candidates.combine import Candidate
from placement.candidates.request import CandidatesRequest
from placement.model.world import World

#: bounds of what one world keeps: requests, and candidates and roots of all of them
_MOST_REQUESTS: Final = 256
_MOST_KEPT: Final = 100_000
#: trees with more candidates than this are searched each time, lazily
_MOST_PER_ROOT: Final = 64
_WEIGHT_OF_CANDIDATE: Final = 4


class Memo:
    """The candidates of one request by root."""

    def __init__(self, request: CandidatesRequest) -> None:
        self.request = request
        self.asked = 0
        self.weight = 0
        self._found: dict[int, tuple[int, tuple[Candidate, ...]]] = {}

    def get(self, root: int, revision: int) -> tuple[Candidate, ...] | None:
        """All candidates of the root, if they are known for this revision of its tree."""
        known = self._found.get(root)
        return known[1] if known is not None and known[0] == revision else None

    def keep(self, root: int, revision: int, candidates: tuple[Candidate, ...]) -> None:
        """Remember all candidates of the root."""
        old = self._found.get(root)
        self.weight += 1 + _WEIGHT_OF_CANDIDATE * len(candidates)
        if old is not None:
            self.weight -= 1 + _WEIGHT_OF_CANDIDATE * len(old[1])
        self._found[root] = (revision, candidates)

    def recording(self, root: int, revision: int, candidates: Iterator[Candidate]) -> Iterator[Candidate]:
        """Pass the candidates on, and keep them if they were all asked for."""
        passed: list[Candidate] = []
        for candidate in candidates:
            if len(passed) <= _MOST_PER_ROOT:
                passed.append(candidate)
            yield candidate
        if len(passed) <= _MOST_PER_ROOT:
            self.keep(root, revision, tuple(passed))


def memo_of(world: World, request: CandidatesRequest) -> Memo | None:
    """The memo of this request object, None when it is asked for the first time.

    The requests that were not asked for longest make room for others.
    """
    memos: OrderedDict[int, Memo] = world.kept.setdefault("candidates", OrderedDict())
    memo = memos.get(id(request))
    if memo is None or memo.request is not request:
        memo = memos[id(request)] = Memo(request)
        while len(memos) > 1 and (
            len(memos) > _MOST_REQUESTS or sum(each.weight for each in memos.values()) > _MOST_KEPT
        ):
            memos.popitem(last=False)
    else:
        memos.move_to_end(id(request))
    memo.asked += 1
    return memo if memo.asked > 1 else None

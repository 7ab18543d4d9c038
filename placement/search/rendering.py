"""Renders the body of ``GET /allocation_candidates`` by joining cached parts.

A candidate is rendered by a template of its pattern, into which the uuids of a provider set are filled. From
microversion 1.29 on, the summaries of a tree do not depend on the request, and change only when the tree
changes. :class:`ProviderSummaries` keeps these texts for later answers.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any, Final, NamedTuple

import orjson

from placement import microversion
from placement.microversion import Microversion
from placement.read_model.provider import Provider, in_order
from placement.read_model.snapshot import ModelSnapshot
from placement.read_model.trees import HostTree
from placement.search.budget import SearchBudget
from placement.search.candidates import CandidatePattern, Offer, PatternBatch, PatternForm, candidates_of

# dropping outdated summaries takes a loop over all trees, so it waits until a tenth of the summaries is
# outdated
_MAX_OUTDATED: Final = 0.1
"""Outdated summaries are dropped when there are more summaries than trees, by more than this share of the
trees.
"""
_STEP: Final = 4096
"""Number of bytes of rendered text that count as one step of the search's budget."""
# joining a whole answer of 40 MB would take 30 ms, during which no other thread runs
_PIECE: Final = 1 << 20
"""Approximate size of a piece of the answer, in bytes."""
_STEPS_OF_PIECE: Final = 64
"""Number of steps of the budget that joining one piece of the answer costs."""


class SummaryShape(NamedTuple):
    """The optional parts of a provider summary, which depend on the microversion."""

    traits: bool
    """Whether a summary has traits."""
    nested: bool
    """Whether summaries contain parent and root, and the answer contains the whole trees of used
    providers.
    """

    @classmethod
    def for_version(cls, version: Microversion) -> "SummaryShape":
        """Return the shape of summaries in a microversion."""
        return cls(version >= microversion.CANDIDATES_TRAITS, version >= microversion.NESTED_CANDIDATES)


class ProviderSummaries:
    """The rendered JSON of the provider summaries of whole trees, cached until a tree changes.

    After each answer, the number of kept summaries (of one shape) exceeds the number of trees by at most a
    tenth.
    """

    def __init__(self) -> None:
        # the read model makes a new tree object for each change, so an entry is never wrong
        self._kept: dict[SummaryShape, dict[HostTree, bytes]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._kept.values()))

    def of_trees(
        self,
        snapshot: ModelSnapshot,
        trees: Iterable[HostTree],
        shape: SummaryShape,
        budget: SearchBudget,
    ) -> list[bytes]:
        """Return the summaries of each tree in this shape."""
        kept = self._kept.setdefault(shape, {})

        def render_tree(tree: HostTree) -> bytes:
            budget.spend_anyway(len(tree.members))
            rendered = [_provider_summary(snapshot, each, shape, each.inventories) for each in tree.members]
            # summaries are keyed by the identity of the tree, so that a later answer finds the summaries
            # without reading providers
            summaries = kept[tree] = b",".join(rendered)
            return summaries

        # two requests may render one tree at the same time; the results are equal, and the later one is kept
        found = [kept.get(tree) or render_tree(tree) for tree in trees]
        present = snapshot.whole_trees()
        if len(kept) > len(present) * (1 + _MAX_OUTDATED):
            self._kept[shape] = {tree: kept[tree] for tree in present.values() if tree in kept}
        return found


def render_pieces(
    snapshot: ModelSnapshot,
    offers: Sequence[Offer],
    version: Microversion,
    kept: ProviderSummaries,
    budget: SearchBudget,
) -> list[bytes]:
    """Return the JSON of the answer, in pieces of about 1 MiB; an answer may have 100 MiB.

    :param budget: the budget of the search. The pauses of the budget let other threads run during a long
        answer.
    """
    if not offers:
        # the function returns early, because the code below needs at least one candidate and one provider
        return [b'{"allocation_requests":[],"provider_summaries":{}}']
    parts = _allocation_requests(offers, version, budget)
    parts[0] = b'{"allocation_requests":[' + parts[0]
    first, *others = _summary_parts(snapshot, offers, version, kept, budget)
    parts[-1] += b'],"provider_summaries":{' + first
    parts += others
    parts[-1] += b"}}"
    # the parts of a piece are joined once: appending each part to one string would copy the string each time
    pieces = []
    begin = size = 0
    for end, part in enumerate(parts[:-1], 1):
        size += len(part)
        if size >= _PIECE:
            budget.spend_anyway(_STEPS_OF_PIECE)
            pieces += [b",".join(parts[begin:end]), b","]
            begin, size = end, 0
    return [*pieces, b",".join(parts[begin:])]


def _allocation_requests(offers: Sequence[Offer], version: Microversion, budget: SearchBudget) -> list[bytes]:
    """Return the JSON of the candidates of each offer."""
    make = _CandidateTemplates(version, budget)
    templates: dict[PatternBatch, _Template] = {}
    requests = []
    for provider_set, patterns in offers:
        template = templates.get(patterns)
        if template is None:
            template = templates[patterns] = make(patterns)
        text, pick = template
        # steps are counted by bytes, because filling in uuids copies the text, and a batch may have thousands
        # of candidates
        budget.spend_anyway(1 + len(text) // _STEP)
        # templates and uuids are bytes, which saves encoding a text for each candidate
        requests.append(text % pick(provider_set.uuids))
    return requests


_Template = tuple[bytes, Callable[[tuple[bytes, ...]], Any]]
"""A JSON text with a gap for each uuid, and a function that picks these uuids from a provider set."""


class _CandidateTemplates:
    """Makes a JSON template for each batch; names and uuids need no escaping."""

    def __init__(self, version: Microversion, budget: SearchBudget) -> None:
        self._version = version
        self._budget = budget
        #: the text of each form, and a function that picks the positions of its gaps from those of a pattern
        self._forms: dict[PatternForm, tuple[str, Callable[[tuple[int, ...]], Any]]] = {}

    def __call__(self, patterns: Sequence[CandidatePattern]) -> _Template:
        """Return the JSON template of a batch of patterns."""
        # the parts are joined as text and encoded once, because batches share the rendered forms
        gaps: list[int] = []
        requests = []
        self._budget.spend_anyway(len(patterns))
        for positions, form in patterns:
            known = self._forms.get(form)
            if known is None:
                known = self._forms[form] = self._of_form(form)
            requests.append(known[0])
            gaps += known[1](positions)
        return ",".join(requests).encode(), itemgetter(*gaps)

    def _of_form(self, form: PatternForm) -> tuple[str, Callable[[tuple[int, ...]], Any]]:
        version = self._version
        gaps = [*form.resources]
        allocations = ",".join([_allocation_template(each, version) for each in form.resources.values()])
        text = f'{{"allocations":{{{allocations}}}}}'
        if version < microversion.ALLOCATIONS_BY_PROVIDER:
            text = f'{{"allocations":[{allocations}]}}'
        elif version >= microversion.MAPPINGS:
            gaps += chain.from_iterable(form.mappings.values())
            mappings = ",".join([_mapping_template(suffix, len(at)) for suffix, at in form.mappings.items()])
            text = f'{{"allocations":{{{allocations}}},"mappings":{{{mappings}}}}}'
        # a slice instead of an index makes itemgetter return a sequence for a single gap, too
        return text, itemgetter(*gaps) if len(gaps) > 1 else itemgetter(slice(gaps[0], gaps[0] + 1))


def _allocation_template(amounts: Mapping[str, int], version: Microversion) -> str:
    # names of classes are upper case letters, digits and underscores, which JSON does not escape
    resources = ",".join([f'"{name}":{amount}' for name, amount in amounts.items()])
    if version < microversion.ALLOCATIONS_BY_PROVIDER:
        return f'{{"resource_provider":{{"uuid":"%b"}},"resources":{{{resources}}}}}'
    return f'"%b":{{"resources":{{{resources}}}}}'


def _mapping_template(suffix: str, providers: int) -> str:
    uuids = ",".join(['"%b"'] * providers)
    return f'"{suffix}":[{uuids}]'


def _summary_parts(
    snapshot: ModelSnapshot,
    offers: Sequence[Offer],
    version: Microversion,
    kept: ProviderSummaries,
    budget: SearchBudget,
) -> Iterable[bytes]:
    """Return ``"uuid":{...}`` of each used provider; from 1.29 on, of all providers of their trees."""
    shape = SummaryShape.for_version(version)
    # summaries of whole trees do not depend on the request, so they are kept for later answers
    if shape.nested:
        return kept.of_trees(snapshot, _used_trees(snapshot, offers), shape, budget)
    ids: dict[int, None] = {}
    classes: set[str] = set()  # any candidate shows the requested classes, because each one has all of them
    for candidate in candidates_of(offers):
        resources = candidate.resources
        budget.spend_anyway()
        ids.update(dict.fromkeys(resources))
        classes = classes or set().union(*resources.values())
    budget.spend_anyway(len(ids))
    used = [snapshot.providers[provider_id] for provider_id in ids]
    # below microversion 1.27 the API shows only the classes that the request asks for
    if version >= microversion.ALL_CLASSES_SUMMARISED:
        return [_provider_summary(snapshot, provider, shape, provider.inventories) for provider in used]
    return [_provider_summary(snapshot, provider, shape, classes) for provider in used]


def _used_trees(snapshot: ModelSnapshot, offers: Iterable[Offer]) -> Iterable[HostTree]:
    """Return the trees of all providers from which a candidate takes an amount, each tree once."""
    trees = snapshot.whole_trees()
    found: dict[HostTree, None] = {}
    used_by: dict[PatternBatch, list[int]] = {}
    for provider_set, patterns in offers:
        members, own = provider_set.members, provider_set.own_count
        if own == len(members):
            # without sharing providers, candidates use only this tree
            found[trees[members[0].root_id]] = None
            continue
        used = used_by.get(patterns)
        if used is None:
            used = used_by[patterns] = sorted({at for pattern in patterns for at in pattern.giving_positions})
        # positions are collected once for each batch, because equivalent trees share batches; positions of
        # sharing providers come last
        if used[0] < own:
            found[trees[members[0].root_id]] = None
        for at in reversed(used):
            if at < own:
                break
            found[trees[members[at].root_id]] = None
    return found


def _provider_summary(
    snapshot: ModelSnapshot, provider: Provider, shape: SummaryShape, classes: Mapping[str, Any] | set[str]
) -> bytes:
    summary: dict[str, Any] = {
        # orjson is used instead of a template, because a summary is rendered only once for each change of its
        # tree
        "resources": {
            name: {"capacity": inventory.capacity, "used": provider.used.get(name, 0)}
            for name, inventory in provider.inventories.items()
            if name in classes
        }
    }
    if shape.traits:
        summary["traits"] = in_order(provider.traits)
    if shape.nested:
        parent = None if provider.parent_id is None else snapshot.providers[provider.parent_id].uuid
        summary["parent_provider_uuid"] = parent
        summary["root_provider_uuid"] = snapshot.providers[provider.root_id].uuid
    return b'"%b":%b' % (provider.uuid.encode(), orjson.dumps(summary))

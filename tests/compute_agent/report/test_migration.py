"""Tests of pairs of a guest and its migration, found from Placement's answers."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compute_agent.model.guest import GuestHolding, GuestMigration
from compute_agent.report.audit import MigrationClaim, MovedGuest, resolve_holdings

HELD, LESS = {"rp": {"PCPU": 2}}, {"rp": {"PCPU": 1}}
OWNER, STRANGER = ("p", "u"), ("q", "u")
THROUGH = GuestHolding(HELD, GuestMigration("m"))


def one(guest, *claims):
    return resolve_holdings([guest], claims)["g"]


@pytest.mark.parametrize("owner", [None, OWNER])
@pytest.mark.parametrize("said", [None, "unknown", "MIGRATION"])
def test_a_new_claim_of_what_was_held_is_the_migration(owner, said):
    assert one(MovedGuest("g", HELD, {}, owner=owner), MigrationClaim("m", HELD, OWNER, said)) == THROUGH


@pytest.mark.parametrize(
    "claim",
    [
        MigrationClaim("m", LESS, OWNER),
        MigrationClaim("m", HELD, OWNER, new=False),
        MigrationClaim("m", HELD, STRANGER),
        MigrationClaim("m", HELD, OWNER, "INSTANCE"),
    ],
    ids=["other amounts", "was there before", "somebody else's", "of an instance"],
)
def test_other_claims_are_not(claim):
    assert one(MovedGuest("g", HELD, {}, owner=OWNER), claim) == GuestHolding({})


def test_a_migration_that_is_known_goes_on_whatever_it_holds_now():
    known = MovedGuest("g", HELD, {}, migration="m")
    assert one(known, MigrationClaim("m", LESS, new=False)) == GuestHolding(LESS, GuestMigration("m"))


def test_a_guest_with_its_former_allocation_is_not_migrating():
    assert one(
        MovedGuest("g", HELD, HELD, migration="m"), MigrationClaim("m", HELD, new=False)
    ) == GuestHolding(HELD)


def test_a_guest_that_held_nothing_gets_no_claim():
    assert one(MovedGuest("g", {}, {}, owner=OWNER), MigrationClaim("m", HELD, OWNER)) == GuestHolding({})
    assert one(MovedGuest("g", {}, LESS, owner=OWNER), MigrationClaim("m", HELD, OWNER)) == GuestHolding(LESS)


class TestNobodyKnowsWhatItHeld:
    """The agent has lost its state, so the former allocation of the guest is unknown."""

    def guest(self, **fields):
        return MovedGuest("g", None, {}, suitable=frozenset({"m"}), **fields)

    def test_a_claim_that_suits_and_is_its_owners_is_the_migration(self):
        assert one(self.guest(owner=OWNER), MigrationClaim("m", HELD, OWNER)) == THROUGH
        assert one(self.guest(), MigrationClaim("m", HELD, OWNER, "MIGRATION")) == THROUGH

    def test_one_of_which_less_is_known_is_not(self):
        assert one(self.guest(), MigrationClaim("m", HELD, OWNER)) == GuestHolding({})
        assert one(self.guest(owner=OWNER), MigrationClaim("n", HELD, OWNER)) == GuestHolding({})

    def test_an_own_allocation_has_precedence_over_a_claim(self):
        assert one(
            MovedGuest("g", None, LESS, "", OWNER, frozenset({"m"})), MigrationClaim("m", HELD, OWNER)
        ) == GuestHolding(LESS)


def test_the_likeliest_of_several_is_taken_and_the_others_are_told():
    claims = [
        MigrationClaim("a", HELD, None),
        MigrationClaim("b", HELD, OWNER),
        MigrationClaim("c", HELD, None),
    ]
    found = one(MovedGuest("g", HELD, {}, owner=OWNER), *claims)
    assert found == GuestHolding(HELD, GuestMigration("b", ("a", "c")))
    assert str(found.migration) == (
        "migrating: its allocation on this host belongs to consumer b, or to a or c with the same amounts"
    )


AMOUNTS = st.sampled_from([HELD, LESS, {"rp": {"VCPU": 2}}])
OWNERS = st.sampled_from([OWNER, STRANGER])


@st.composite
def worlds(draw):
    """A strategy for running guests, each with the event that has happened since the last report."""
    guests, claims, truth = [], [], {}
    for number in range(draw(st.integers(1, 6))):
        uuid, held, owner = f"g{number}", draw(AMOUNTS), draw(OWNERS)
        match draw(st.sampled_from(["moving", "claimed", "deleted", "back"])):
            case "deleted":
                guests.append(MovedGuest(uuid, held, {}))
            case "back":
                guests.append(MovedGuest(uuid, held, held, f"gone{number}", owner))
            case moving:
                told = owner if moving == "claimed" else None
                guests.append(MovedGuest(uuid, held, {}, owner=told))
                consumer = f"m{draw(st.integers(0, 1000))}-{number}"
                claims.append(MigrationClaim(consumer, held, owner))
                truth[uuid] = consumer
    claims += [
        MigrationClaim(f"x{n}", draw(AMOUNTS), draw(OWNERS), new=False)
        for n in range(draw(st.integers(0, 3)))
    ]
    return guests, draw(st.permutations(claims)), truth


@given(worlds())
def test_every_claim_of_a_migration_is_some_guests_and_nobodys_twice(host_state):
    guests, claims, truth = host_state
    found = resolve_holdings(guests, claims)
    assert found.keys() == {guest.uuid for guest in guests}
    used = [holding.migration.consumer for holding in found.values() if holding.migration]
    assert sorted(used) == sorted(truth.values())
    by_consumer = {claim.consumer: claim for claim in claims}
    for guest in guests:
        holding = found[guest.uuid]
        if holding.migration is None:
            assert holding.allocation == guest.own
        else:
            claim = by_consumer[holding.migration.consumer]
            assert holding.allocation == claim.allocation == guest.before
            assert guest.owner in (None, claim.owner)


@given(worlds())
def test_the_largest_number_of_guests_keep_their_places(host_state):
    """The check tries all ways to assign claims to guests."""
    guests, claims, _ = host_state
    guests = guests[:4]
    found = sum(holding.migration is not None for holding in resolve_holdings(guests, claims).values())
    takers = [guest for guest in guests if guest.own != guest.before]
    best = 0
    for order in itertools.permutations(
        [claim for claim in claims if claim.new] + [None] * len(takers), len(takers)
    ):
        fits = sum(
            claim is not None and claim.allocation == guest.before and guest.owner in (None, claim.owner)
            for guest, claim in zip(takers, order, strict=True)
        )
        best = max(best, fits)
    assert found == best


@given(worlds())
def test_the_order_of_consumers_does_not_matter(host_state):
    guests, claims, _ = host_state
    assert resolve_holdings(guests, claims) == resolve_holdings(guests, claims[::-1])

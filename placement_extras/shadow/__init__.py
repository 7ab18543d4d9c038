"""Trying this service beside OpenStack Placement, which goes on answering.

``placement-shadow`` stands in front of the stock service. A request goes there and its answer goes back,
byte by byte (:mod:`forward`); a copy of both goes to another process (:mod:`outbox`), which asks this
service the same (:mod:`follower`) and compares the answers (:mod:`compare`). So the client waits for the
stock service alone.

**A copy** is a request and what the stock service answered, with the numbers of the writes that were in
flight together with it. This service works on a database that was imported at the start and that nobody
else writes to. Copies are replayed one after the other, in the order in which they were answered:
whatever did not overlap is replayed as it happened.

**What overlapped** may have happened in another order than that of the answers (:mod:`replay`):

- a write that the stock service accepted is asked again, when ours refuses it, after those have been replayed
  that were in flight beside it;
- a write that it refused is not replayed: the reason may have been there for a moment only, and what ours
  accepted instead would stay;
- a read that differs is asked again later; if it still differs it is ``raced``, which is no difference.

For example, with two writes of one provider's inventory, both sent with its generation 4::

    client 1   PUT inventories, generation 4   |-------------|  200
    client 2   PUT inventories, generation 4      |----|        409

the copy of client 2 comes first. It was refused and client 1 was in flight: it is counted as raced, and
not replayed. The copy of client 1 is replayed and answered 200.

Two writes at the same time about the same thing, both without a generation, may go unnoticed in the
wrong order; reads show it later.

**In step** is said of our database as long as every write had the same outcome on both sides. Afterwards
differences may follow from the first one, which the report names.
"""

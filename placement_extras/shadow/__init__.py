"""Trial of this service beside OpenStack Placement, which keeps answering the clients.

``placement-shadow`` stands in front of the stock service. The program passes requests and answers on, byte by
byte (:mod:`~placement_extras.shadow.proxy`). A copy of both goes to a second process
(:mod:`~placement_extras.shadow.copy_queue`), which sends this service the same request
(:mod:`~placement_extras.shadow.follower`) and compares the answers
(:mod:`~placement_extras.shadow.comparison`). The client waits for the stock service alone.

**A copy** is a request and the answer of the stock service, with the numbers of the writes that were in
flight at the same time. This service works on a database that was imported at the start and has no other
writers. Copies are replayed one after the other, in the order of their answers. The order of answers is the
order of events for all requests that did not overlap.

**Requests that overlapped** may have happened in another order (:mod:`~placement_extras.shadow.replay`):

- a write that the stock service accepted and ours refuses is sent again after the overlapping writes;
- a write that the stock service refused is not replayed: its reason may disappear a moment later, and ours
  could then accept the write;
- a read that differs is sent again later; if it still differs, it is ``raced`` and not counted as a
  difference.

For example, with two writes of one provider's inventory, both sent with its generation 4::

    client 1   PUT inventories, generation 4   |-------------|  200
    client 2   PUT inventories, generation 4      |----|        409

the copy of client 2 comes first. The write of client 2 was refused while client 1 was in flight, so it counts
as raced and is not replayed. The copy of client 1 is replayed and answered 200.

Two simultaneous writes of one item, both without a generation, may be replayed in the wrong order. Later
reads then differ.

Our database is **in step** as long as every write has the same outcome on both sides. Later differences may
follow from the first one, which the report names.
"""

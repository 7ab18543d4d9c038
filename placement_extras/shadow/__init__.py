"""A trial of this service beside OpenStack Placement (the *stock service*), which still answers all clients.

Clients connect to ``placement-shadow`` instead of the stock service. The program passes requests and
answers on unchanged (:mod:`~placement_extras.shadow.proxy`). A copy of each request and its answer goes to
a second process
(:mod:`~placement_extras.shadow.copy_queue`), which sends this service the same request
(:mod:`~placement_extras.shadow.follower`) and compares the answers
(:mod:`~placement_extras.shadow.comparison`). So the client waits only for the stock service.

**A copy** is a request and the answer of the stock service, with the numbers of the writes that were in
flight at the same time. The database of this service is a copy that was made at the start of the trial, and
nothing else writes to it. Copies are replayed one after the other, in the order of their answers. If requests
did not overlap, this is also the order in which the stock service executed them.

**Requests that overlapped** may have been executed in another order (:mod:`~placement_extras.shadow.replay`):

- If this service refuses a write that the stock service accepted, the write is sent again after the
  overlapping writes.
- A write that the stock service refused is not replayed. The reason for the refusal may have existed only for
  a moment, so this service might accept the write.
- A read with different answers is sent again later. If the answers still differ, the read counts as ``raced``
  and not as a difference.

For example, with two writes of one provider's inventory, both sent with its generation 4::

    client 1   PUT inventories, generation 4   |-------------|  200
    client 2   PUT inventories, generation 4      |----|        409

the copy of client 2 comes first. The write of client 2 was refused while the write of client 1 was in flight,
so the write of client 2 counts as raced and is not replayed. The copy of client 1 is replayed and answered
200.

Two simultaneous writes of one item, both without a generation, may be replayed in the wrong order. Later
reads then differ.

Our database is **in step** as long as every write has the same outcome in both services. The report names the
first write with different outcomes, because later differences may follow from it.
"""

"""A trial of this service beside OpenStack Placement (the *stock service*), which still answers all clients.

Clients connect to ``placement-shadow`` instead of the stock service. The program forwards requests and
answers unchanged (:mod:`~placement_extras.shadow.proxy`). The program sends a copy of each request with its
answer to a second process (:mod:`~placement_extras.shadow.copy_queue`). The second process sends the same
request to this service (:mod:`~placement_extras.shadow.follower`) and compares the two answers
(:mod:`~placement_extras.shadow.comparison`). So clients wait only for the stock service.

**A copy** is a request and the answer of the stock service, with the numbers of the writes that were in
flight at the same time. At the start of the trial, the database of the stock service is copied into the
database of this service. Afterwards, only replayed requests change the database of this service. Copies are
replayed one after the other, in the order of their answers. If requests did not overlap, the stock service
has executed them in the same order.

**Requests that overlapped** were perhaps executed in another order (:mod:`~placement_extras.shadow.replay`):

- If this service refuses a write that the stock service accepted, the write is sent again after the
  overlapping writes.
- A write that overlapped another one, and that the stock service refused, is not replayed. Its refusal
  perhaps had a reason that existed only for a moment, so this service could accept the write.
- A read with different answers is sent again later. If the answers still differ, the read counts as ``raced``
  and not as a difference.

For example, two clients write the inventory of one provider, each with its generation 4::

    client 1   PUT inventories, generation 4   |-------------|  200
    client 2   PUT inventories, generation 4      |----|        409

The copy of client 2 comes first, because client 2 was answered first. The write of client 2 was refused while
the write of client 1 was in flight, so it counts as ``raced`` and is not replayed. The copy of client 1 is
replayed and answered 200.

Two simultaneous writes of one item without a generation are perhaps replayed in the wrong order. Later reads
then have different answers.

Our database is **in step** as long as each write has the same outcome in both services. The report has the
first write with different outcomes, because this write can cause all later differences.
"""

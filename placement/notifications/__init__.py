"""Sends time events to a webhook: ``placement-manage windows notify``.

Nouns
    The *position* is a time of the database's clock. Events before this time were delivered. The *recent*
    events are the delivered events from :data:`~placement.notifications.notifier.OVERLAP` seconds before the
    position on. A *round* delivers the events from the overlap to the present.

Invariants
    - An event is delivered at least once: its delivery is recorded on the disk afterwards. After a kill, the
      notifier repeats the events that it has not recorded: one event, or a small part of a burst.
    - Events of a round are delivered in order. No event is left out, however long the webhook refuses it.
    - A transaction may become visible only after the time of its event. So each round reads the overlap
      again, and leaves out the recent events.
    - Each wait has a limit: no answer of the webhook can block the notifier.
"""

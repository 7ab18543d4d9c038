"""Sends time events to a webhook: ``placement-manage windows notify``.

Nouns
    The *position* is a time of the database's clock. All events before the position were delivered. The
    *overlap* is the time from :data:`~placement.notifications.notifier.OVERLAP` seconds before the position
    to the position. The *recent* events are the delivered events since the start of the overlap. A *round*
    delivers the events from the start of the overlap to the present.

Invariants
    - Each event is delivered at least once, because the notifier records a delivery on the disk only after
      the delivery. After a kill, the notifier repeats the events that it has not recorded: one event, or a
      small part of a burst.
    - The events of a round are delivered in order. No event is left out, however long the webhook refuses it.
    - Some transactions become visible only after the time of their event. So each round reads the overlap
      again, and leaves out the recent events.
    - Each wait has a limit, so no answer of the webhook can block the notifier.
"""

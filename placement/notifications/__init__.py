"""Sends time events to a webhook: ``placement-manage windows notify``.

Nouns
    The *position* is a time of the database's clock: each event before it was delivered, or is known. The
    *recent* events are the delivered ones of the last :data:`~placement.notifications.notifier.OVERLAP`
    seconds before the position, and behind it. A *round* delivers the events from the overlap to the present.

Invariants
    - An event is delivered at least once: its delivery is recorded on the disk afterwards. A notifier that is
      killed delivers again what it has not recorded: one event, or a small part of a burst.
    - Events of a round are delivered in order. No event is left out, however long the webhook refuses it.
    - A transaction may become visible after an event of its own. Each round reads the overlap again, and
      leaves out what is recent.
    - Each wait has a limit: the webhook cannot hold the notifier, whatever it answers.
"""

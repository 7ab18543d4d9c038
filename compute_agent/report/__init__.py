"""The agent's reports to Placement, and its reading of Placement.

:mod:`~compute_agent.report.plan` compares the host's tree with Placement's and plans what to send;
:mod:`~compute_agent.report.reshape` moves allocations along; :mod:`~compute_agent.report.execution` sends the
plan through :mod:`~compute_agent.report.client`; :mod:`~compute_agent.report.reporter` ties them together.
:mod:`~compute_agent.report.audit` and :mod:`~compute_agent.report.history` judge what guests hold there.
    Plans, reshapes and judgements are pure functions.
"""

"""What the agent reports to Placement and what it asks it.

The REST client, the plan of a report, and the reporter.
"""

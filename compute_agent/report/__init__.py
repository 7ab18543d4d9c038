"""What the agent tells Placement and what it asks it: the REST client, the plan of a report, and the
reporter.
"""

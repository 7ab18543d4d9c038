"""Moves from OpenStack Placement and back.

An *import* copies the database of OpenStack Placement into an empty one of ours. An *adoption* renames the
tables of OpenStack Placement inside their database and fills ours beside them. An *abandonment* gives an
adopted database back, with or without later writes.

``content`` reads both schemas into one shape, which is counted and compared. ``stock_database`` reads the
tables of OpenStack Placement, ``stock_writer`` writes them. ``importer`` copies, ``relations`` renames
tables.

Each move either completes or leaves the database as it was. PostgreSQL and SQLite run a move in one
transaction. MySQL commits each change of a table, so there a row records the stage and a second run
continues.
"""

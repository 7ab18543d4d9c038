"""Moves from OpenStack Placement and back.

An *import* copies the database of OpenStack Placement into an empty one of ours. An *adoption* renames the
tables of OpenStack Placement inside their database, and creates and fills ours beside them. An *abandonment*
gives an adopted database back to OpenStack Placement, with or without the changes since the adoption.

``content`` reads both schemas into one format, in which the contents are counted and compared.
``stock_database`` reads the tables of OpenStack Placement, ``stock_writer`` writes them. ``importer`` copies
rows, ``relations`` renames tables.

Each move either completes or leaves the database as it was. PostgreSQL and SQLite execute a move in one
transaction. MySQL commits each change of a table, so there a row records the progress of the move, and a
second run continues.
"""

"""Moves a cloud from OpenStack Placement to this service, and back.

An *import* copies the database of OpenStack Placement into an empty database of this service. An *adoption*
renames the tables of OpenStack Placement inside their database, creates our tables beside them, and copies
the content of the old tables into ours. An *abandonment* gives an adopted database back to OpenStack
Placement, with or without the changes since the adoption. Each of the three is a *move*.

``content`` reads databases of both schemas into one format, in which their contents are counted and compared.
``stock_database`` reads the tables of OpenStack Placement, and ``stock_writer`` writes them. ``importer``
copies rows into our tables, and ``relations`` locks, renames and removes tables.

A move that fails leaves the database unchanged. PostgreSQL and SQLite execute a move in one transaction.
MySQL commits each change of a schema at once. So a row in a MySQL database records the progress of an
adoption or abandonment. If a crash interrupts the move on MySQL, a second run continues from the recorded
step.
"""

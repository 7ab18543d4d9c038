"""Access to the database: tables, connections, transactions that run again after conflicts, migrations."""

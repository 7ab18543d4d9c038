"""Access to the database: tables, connections, transactions that repeat after conflicts, migrations."""

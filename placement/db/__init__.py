"""The database: tables, connections, transactions that run again after conflicts, and schema migrations."""

"""The database: tables, connections, transactions with their retries, migrations."""

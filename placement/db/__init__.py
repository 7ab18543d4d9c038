"""The database: tables, connections, repeated transactions, and migrations of the schema."""

"""The REST API: Flask blueprints, a module for each resource; they parse, check, call and serialise."""

"""The bundled web server: its settings, and its worker: whole requests to threads, slow clients to nobody."""

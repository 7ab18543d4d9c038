"""The worker of the bundled web server: whole requests to threads, slow clients to nobody."""

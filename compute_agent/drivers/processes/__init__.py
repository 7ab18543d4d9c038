"""Guests that are plain processes of this host."""

"""Kinds of guests behind one small interface: what runs on the host and how CPU settings reach it."""

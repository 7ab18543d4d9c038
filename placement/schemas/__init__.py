"""Schemas of bodies and query strings, with the microversions that they belong to."""

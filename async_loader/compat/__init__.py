"""Signatures of other loaders on this package's pipeline: a script changes only its import line."""

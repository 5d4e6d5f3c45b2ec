"""Side-by-side comparisons with other loaders, and their recorded results.

Nothing here is imported by the package.
"""

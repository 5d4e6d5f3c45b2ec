"""Formats of rows in memory and the compiler of kernels: what the rest of the replay package builds
on.
"""

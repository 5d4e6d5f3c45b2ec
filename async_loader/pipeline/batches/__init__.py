"""Batches: where they are written, how they are collated, and how they become tensors."""

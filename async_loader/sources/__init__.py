"""Sources made of what a user has at hand: a callable, or a dict of columns."""

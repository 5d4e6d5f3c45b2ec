"""Sources over plain Python data: a callable, or a dict of columns."""

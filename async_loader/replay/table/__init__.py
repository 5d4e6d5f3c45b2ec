"""One table: its state under one lock, and the rows that readers take without it."""

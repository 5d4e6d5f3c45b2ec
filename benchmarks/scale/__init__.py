"""Several shards as one table, beside one shard, and beside buffers that are actors of Ray."""

ROWS = ("row_small", "row_atari")

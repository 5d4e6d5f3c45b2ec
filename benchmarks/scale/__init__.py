"""Several shards as one table, beside one shard, and beside buffers that are actors of Ray; what
it costs to look at one."""

ROWS = ("row_small", "row_atari", "row_watch")

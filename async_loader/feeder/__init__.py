"""The feeder: a standalone process that owns replay tables; actors push steps in, learners pull batches out."""

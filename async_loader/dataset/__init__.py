"""Datasets, epoch by epoch, over the pipeline's engine. The flow, drawn once:

    Order ─index arrays─▶ Batches ─a task each─▶ Engine: MapWork | StreamWork ─▶ Epoch ─▶ consumer
                             │                                                   ▲
                             └── when the dataset is arrays: Columns.gather ─────┘

A state of a loader says how far its epoch is: which tasks are over (`EpochProgress`), where the
sampler is, and where each worker's dataset is (`Bookmark`), which workers send along with their
batches.

No queue, thread or process of its own.
"""

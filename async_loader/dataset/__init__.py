"""Datasets, epoch by epoch, over the pipeline's pool of workers. The flow, drawn once:

    Order ──index arrays──▶ Batches ──one task a batch──▶ Pool: MapWork | StreamWork ──▶ Epoch ──▶ the consumer
                               │                                                          ▲
                               └── when the dataset is arrays: Columns.gather ────────────┘

A state of a loader is the course of its epoch: which tasks are over (`Course`), where the sampler is, and where each worker's
dataset is (`Bookmark`), which workers send along with their batches.

No queue, thread or process of its own.
"""

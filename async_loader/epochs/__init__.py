"""Datasets, epoch by epoch, over the pipeline's pool of workers. The flow, drawn once:

    Order ──index arrays──▶ Batches ──one task a batch──▶ Pool: MapWork | StreamWork ──▶ Epoch ──▶ the consumer
                               │                                                          ▲
                               └── when the dataset is arrays: Columns.gather ────────────┘

No queue, thread or process of its own.
"""

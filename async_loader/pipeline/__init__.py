"""From plans to batches. The flow, drawn once:

    Producer ──plan──▶ MainWorker (its own thread)  ──────────────────▶ TrainQueue
        │                                                                  ▲  │
        └─cut (ChunkAssembler)─▶ JobQueue ──▶ WorkerPool ──Channel──▶ worker processes │  ├──────────────▶ Iterator   (CPU)
                                         ▲                     │           │  └▶ Streamer ─▶ CudaQueue ─▶ Iterator
                                         └── answers ──────────┘           │                  (accelerator)
                                         │        rows ──▶ slots (Places)  │
                                         └─assemble (ChunkAssembler)─────────────┘

Slots are leased when a batch begins and go back when the last tensor on them dies; Credits bound how many batches are
under way.

# NOTE [start order]
1. Worker processes: a fork copies no thread of ours, and neither waits for torch nor carries it.
2. torch, which the first batch needs anyway. Imported later, by `next`, it would be half-made for the other threads,
   and a worker that is replaced by a fork in the middle of it would hang on the loader's locks that it copied.
3. Threads: the crew, the producer, the streamer.

# NOTE [close order]
1. The end flag goes up: the producer, the crew and every worker wait on it together with what they wait for.
2. Queues close: whoever waits in them wakes with Closed. What they held is dropped, and with it the leases.
3. Threads are joined: the producer; the crew, which gives workers half a second, kills the rest and reaps all; the
   streamer, which synchronises its copies before it gives pages back.
4. Descriptors are closed when nobody can wait on them any more. A thread that does not end (a data source that blocks
   for ever) keeps its own; it is a daemon and is named in a warning.
"""

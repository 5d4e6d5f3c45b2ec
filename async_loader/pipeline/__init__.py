"""From tasks to batches: the engine of all loaders.

 consumer's thread            producer thread            pool's thread              worker processes | worker threads
 BatchIterator ──fill()──┐    Producer ──produce()──┐
                         ▼                          ▼
                       Supply: TaskSupplier.draw ─▶ task ─▶ Dispatch
                                                              ├─ in this thread: SampleTasks, InlineTasks ──▶ Batch ──┐
                                                              └─ ChunkAssembler.cut ─▶ JobQueue ─▶ WorkerPool ─▶ Worker
                                                                     ChunkAssembler.load, assemble ◀── answers
                                                                                     └─▶ Batch ───────────────────────┤
 BatchIterator ◀── [CudaQueue ◀── Streamer | PinningThread ◀──] TrainQueue ◀──────────────────────────────────────────┘

Slots are leased when a batch begins and go back when the last tensor on them dies; `Credits` bound
how many batches are under way. An `Engine` lives as long as its loader and runs any number of
iterations; AsyncDataLoader has one, without end.

| tasks | drawn by | done by | for |
|---|---|---|---|
| `SourceTasks`: plans of a source | the producer thread | that thread, worker threads, worker
processes | AsyncDataLoader |
| `IterableTasks`, `StreamTasks` | the consumer, ahead | worker threads, worker processes |
DataLoader with workers |
| the same | the consumer, or the transfer thread | the same thread | DataLoader without workers |

# NOTE [start order]
1. Worker processes: a fork copies no thread of ours, and neither waits for torch nor carries it.
   (Workers that have torch anyway are forked from a process that has imported it:
   `CoreSettings.torch_workers`.)
2. torch, which the first batch needs anyway. Imported later, by `next`, it would be half-made for
   the other threads, and a worker that is replaced by a fork in the middle of it would hang on the
   loader's locks that it copied.
3. Threads: the pool's, the producer, the streamer.

NOTE [close order] is in engine_core.py.
"""

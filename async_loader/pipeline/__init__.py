"""From tasks to batches: the engine of all loaders.

 consumer's thread       producer thread       pool's thread      worker processes | threads
 BatchIterator ─fill()─┐    ─produce()─┐
                       ▼               ▼
                     Supply: TaskSupplier.draw ─▶ task ─▶ TaskDispatch | PlanDispatch
                                                            │
   ┌─ Batch ◀── SampleTasks, InlineTasks ◀── in this thread ┤
   │                                                        └▶ ChunkAssembler.cut ─▶ JobQueue
   │                                                                                   │
   ├─ Batch ◀── ChunkAssembler.load, assemble ◀── answers ◀── Worker ◀── WorkerPool ◀──┘
   ▼
 TrainQueue ─▶ [Streamer | PinningThread ─▶ TrainQueue] ─▶ BatchIterator

Slots are leased when a batch begins and go back when the last tensor on them dies; the credits
of `Supply` bound how many batches are under way. An `Engine` lives as long as its loader and runs
any number of iterations; AsyncDataLoader has one, without end.

| tasks | drawn by | done by | for |
|---|---|---|---|
| `SourceTasks` | the producer thread | that thread, or workers | AsyncDataLoader |
| `IterableTasks`, `StreamTasks` | the consumer, ahead | workers | DataLoader with workers |
| the same | the consumer, or the transfer thread | the same thread | DataLoader without workers |

# NOTE [start order]
1. Worker processes: a fork copies no thread of ours, and neither waits for torch nor carries it.
   (Workers that have torch anyway are forked from a process that has imported it:
   `EngineCore`.)
2. torch, which the first batch needs anyway. Imported later, by `next`, it would be half-made for
   the other threads, and a worker that is replaced by a fork in the middle of it would hang on the
   loader's locks that it copied.
3. Threads: the pool's, the producer, the streamer.

NOTE [close order] is in engine_core.py.
"""

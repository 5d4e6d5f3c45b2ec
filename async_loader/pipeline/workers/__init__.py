"""Workers: processes, threads, and the producer's own thread."""

"""Memory formats and the compiler of kernels, on which the rest of replay is built."""

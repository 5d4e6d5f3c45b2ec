"""Memory that processes share: segments, and rings of batch slots within them."""

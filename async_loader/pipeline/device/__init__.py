"""The copy to an accelerator: streamer, device backends, cuda queue, page-locked memory."""

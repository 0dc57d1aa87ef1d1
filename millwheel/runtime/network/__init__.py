"""Records, acknowledgements and watermarks between workers."""

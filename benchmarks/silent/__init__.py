"""SilentTraps: faults that raise no error, as a benchmark for tools and coding agents."""

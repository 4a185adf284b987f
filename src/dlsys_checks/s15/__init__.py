"""Stage 15: laws, cases and named wrong answers for parallelism and planning."""

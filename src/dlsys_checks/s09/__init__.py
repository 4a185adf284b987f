"""Stage 9: laws, cases and wrong answers for mixed precision, distributed training, profiling."""

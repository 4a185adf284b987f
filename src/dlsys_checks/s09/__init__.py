"""Stage 9: laws, cases and named wrong answers for mixed precision and distributed training."""

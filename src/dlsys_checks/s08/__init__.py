"""Stage 8: laws, cases and named wrong answers for Transformers, attention and GPU kernels."""

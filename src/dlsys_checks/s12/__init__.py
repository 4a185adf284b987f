"""Stage 12: laws, cases and named wrong answers for training stability and MLOps."""

"""Stage 14: laws, cases and named wrong answers for learning from preferences."""

"""Stage 13: laws, cases and named wrong answers for serving a language model."""

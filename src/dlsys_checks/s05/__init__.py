"""Stage 5: laws, cases and named wrong answers for Normalization, dropout and initialization."""

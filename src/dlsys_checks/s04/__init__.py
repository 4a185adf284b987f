"""Stage 4: laws, cases and named wrong answers for optimizers and learning-rate schedules."""

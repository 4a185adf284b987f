"""Stage 3: laws, cases and named wrong answers for losses and gradient pathologies."""

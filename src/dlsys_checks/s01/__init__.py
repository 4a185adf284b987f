"""Stage 1: laws, cases and named wrong answers for perceptrons, MLPs and activations."""

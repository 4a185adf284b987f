"""Stage 2: laws, cases and named wrong answers for backpropagation and autograd."""

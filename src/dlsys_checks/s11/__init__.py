"""Stage 11: laws, cases and named wrong answers for quantization, pruning, distillation, export."""

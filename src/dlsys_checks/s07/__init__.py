"""Stage 7: laws, cases and named wrong answers for CNNs, ResNet and transfer learning."""

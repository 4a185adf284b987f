"""Stage 6: laws, cases and named wrong answers for augmentation, Mixup and early stopping."""

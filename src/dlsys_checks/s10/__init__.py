"""Stage 10: laws, cases and named wrong answers for LoRA, QLoRA and parameter-efficient tuning."""

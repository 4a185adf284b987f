"""The laws and named wrong answers of every exercise, one file per stage."""

"""Runs that must agree: `dlsys same "train.py --bs 8" "train.py --bs 4 --accum 2"`.

Both programs run for a few optimizer steps. The first tensor in which they differ by more than
rounding is named: data, output of a module, loss, gradient or update. Inside a test,
`dlsys.testing.same` does the same.
"""

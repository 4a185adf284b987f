"""The command `dlsys`, the learner's worksheets, the start page and the grader.

No lesson imports it: what a lesson needs is in `dlsys_helpers`.
"""

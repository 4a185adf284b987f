"""The exam: a training script, faults to plant in it, probes with prices, and what is asked.

Like the checks it is as good as answers, and no file of it is in the view of the grader's sandbox.
"""

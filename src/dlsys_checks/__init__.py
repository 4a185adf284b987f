"""Laws, cases and named wrong answers: one folder a stage, one file an exercise.

They are as good as answers. The grader's sandbox has no file of this package in its view.
"""

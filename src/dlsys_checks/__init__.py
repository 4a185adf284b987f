"""Laws, cases and named wrong answers: one folder a stage, one file an exercise.

`checking` holds the verdict that a learner is shown, `registry` finds an exercise by its id. The
checks are as good as answers, so the grader's sandbox has no file of this package in its view.
"""

"""The grader measured: against otter-grader and nbgrader, and with a thousand submissions."""

"""Stage 14: references, groups, penalties on the KL, and ratios."""

import math

import torch

from dlsys_checks.questions import asks, choice, number, whole

# ---- 14.1 a reference that runs along

# ---- 14.2 groups

# ---- 14.3 the KL in the loss

# ---- 14.4 the ratio

# %% [markdown] role="start"
# # Start here
#
# You learn how deep-learning systems work by breaking them. Below you see what comes next
# for you, in files of your own. If nothing appears, choose **Run > Run All Cells**.
#
# If the next cell ends with *No module named 'dlsys'*, this kernel does not have the
# course. Choose the kernel from the course's `.venv` folder, or open a lesson instead:
# its first cell installs the course.

# %% role="start"
from dlsys.start_page import model_menu, next_step, progress_map, review_menu, start_menu

next_step()

# %% [markdown] role="start"
# Every stage is a notebook with a handful of *traps*: code that looks right and is wrong.
# For each one you
#
# 1. **predict** what will happen,
# 2. **break** it and **look** at the damage, in numbers,
# 3. read why, and see the **repair** measured the same way,
# 4. write the repaired function yourself, on a case you have not seen.
#
# A check then tells you whether your function is right. If the check recognizes your
# mistake, it names the mistake.
#
# A line with a ✓ is a *claim*: it shows a measured value next to the bound that the text
# states, as in "accuracy: 0.24, below 0.65". A claim that does not hold stops the lesson.
# The code of a claim is folded: click the three dots to open it. Before its first cell,
# each lesson says what `claim`, `digits`, `fit` and `accuracy` do, if it uses them.
#
# Everything runs on this machine, without a GPU and without a download.

# %% [markdown] role="start"
# ## The stages
#
# The map shows what you have solved, and it has a button for each stage that you have not
# begun.

# %% role="start"
progress_map()

# %% [markdown] role="start"
# ## How much time do you have?
#
# Here are three plans, with times estimated from the words, the code and the exercises of
# the lessons:

# %% role="start"
from dlsys.plan import plan

plan()

# %% [markdown] role="start"
# ## Work on a stage
#
# A button on the map gives you a copy of a lesson and of its worksheet, and so do the
# menu below and `dlsys start 1` in a terminal. Lesson and worksheet are in `my-work/`,
# where nothing ever overwrites them. Read the lesson first, cell by cell with
# **Shift+Enter**, or select a cell and press **G** to run up to the next question. When
# you answer the question, the steps folded below it open. Then solve its exercises in the
# worksheet. Short of time? Take the traps marked *core*.

# %% role="start"
start_menu()

# %% [markdown] role="start"
# ## Your model
#
# Fifty-seven of the exercises are parts of one language model: its attention, its
# optimizer, its checkpoint, its compression. The button below gives you the notebook that
# puts them together, trains it and talks to it; so does `dlsys start model` in a
# terminal. What you have not solved yet comes from torch or another library, so you can
# begin today.

# %% role="start"
model_menu()

# %% [markdown] role="start"
# ## Come back
#
# What you solved or got wrong comes back after 2 days, then after 7, then after 21, as a
# short question with fresh numbers. First come the questions that you were sure of and
# got wrong. You can also practise a stage now.

# %% role="start"
review_menu()

# %% [markdown] role="start"
# ## From a terminal
#
# | command | what it does |
# |---|---|
# | `dlsys start 1` | copies lesson and worksheet of stage 1 to `my-work/` |
# | `dlsys check 1` | checks all exercises of your worksheet |
# | `dlsys answer 01.4` | shows the worked answer of an exercise you have solved |
# | `dlsys review` | asks the questions that are due |
# | `dlsys review --all 01` | asks questions about stage 1 now |
# | `dlsys exam a` | gives you five scripts with planted faults to find; `b` is an equivalent exam |
# | `dlsys parts` | shows which parts of your model are yours, and writes them to a file |
# | `dlsys progress` | shows the map above as a table |
# | `dlsys doctor` | looks for what is missing on this machine |
# | `pytest --nbval-lax my-work/01_activations.ipynb` | shows your points, as a table |
#
# The commands are installed in the environment that `make lab` created; in a new
# terminal, activate that environment first with `. .venv/bin/activate`.

"""Your model: a language model whose parts are a learner's exercise answers.

`parts` says which parts there are and which are the learner's, `network` assembles them, `training`
trains them on a `text`. Unsolved parts come from `standins`: torch or another library.
"""

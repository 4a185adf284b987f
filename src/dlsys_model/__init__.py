"""Your model: a language model whose parts are a learner's exercise answers.

`parts` says which there are and whose, `network` puts them together, `training` trains them on a
`text`. What a learner has not solved comes from `standins`: torch or another library.
"""

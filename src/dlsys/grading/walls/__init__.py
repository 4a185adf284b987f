"""The walls around a learner's code: what builds them, what runs behind them, what goes through.

Trusted, on the judge's side:

    sandbox                    the judge's handle: start the zygote, open a sandbox, send jobs

Around the learner's code, without any law or expected value:

    zygote, supervisor, init   start the code, watch its memory and time, end it
    isolation, cgroups, seccomp   what the code may see, use, and ask of the kernel

In the same process as the learner's code:

    runner, shell, process_limit   run cells and acts, and send what came out

What goes through the walls:

    framing, serialization     length-prefixed, typed and capped; never pickle

Nothing here imports dlsys.grading.books: a sandbox knows no learner, no points and no dates.
"""

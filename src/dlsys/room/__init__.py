"""`dlsys room`: a class that guesses together, on phones and in JupyterLab.

questions.py reads what is asked, rounds.py has the answers, results.py computes what is shown,
log.py keeps every event, server.py is the web server, report.py writes the report. A room
that reviews changes has its rounds and counts in changes.py, and its server in review_server.py.
"""

"""`dlsys room`: a class that guesses together, on phones and in JupyterLab.

questions.py reads what is asked, rounds.py holds what was answered, results.py what is shown of it,
log.py keeps every event, server.py is the web server, report.py what is left afterwards. A room
that reviews changes has its rounds and counts in changes.py, and its server in review_server.py.
"""

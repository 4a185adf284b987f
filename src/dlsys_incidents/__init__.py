"""Incidents: a week of searching for one cause, recorded once and replayed for a learner."""

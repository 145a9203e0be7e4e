"""The demo: an agent that is real in everything but its model, to be interrupted.

It reads a small library about the street trees of Larkhaven, a town that does not exist, and
writes a briefing for its council: with a plan, a blocking analysis, a draft, a lock, a
question, a fact checker and a mail. `midrun demo` runs it.
"""

"""Judges of tokens: a teacher scores the states that the student reached.

Takes:      Verified episodes.
Gives:      a TeacherView for each, or the reason there is none.
May import: torch, numpy, codriver.episode, codriver.errors, codriver.models
"""

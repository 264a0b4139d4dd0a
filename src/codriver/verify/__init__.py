"""Judges of finished text. No model, no tensor.

Takes:      text and the reference answer.
Gives:      what is right, what is wrong, and where.
May import: codriver.errors, sympy, latex2sympy2_extended
"""

"""What the user asked for, checked before anything heavy is loaded.

Takes:      a YAML file and command-line overrides.
Gives:      a frozen Recipe, or all of its problems at once.
May import: pydantic, yaml, codriver.errors
"""

"""Evidence: metrics, token records, the report. Never changes what is trained.

Takes:      Allocated episodes and Updates; later a run folder.
Gives:      metrics.jsonl, token tables, report.html.
May import: numpy, pyarrow, plotly, rich, codriver.episode, codriver.errors
"""

"""codriver: rooms in the order data flows through them. Read `train.py` first."""

__version__ = "0.1.0"

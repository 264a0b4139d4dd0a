"""codriver: rooms in the order data flows through them. Read `train.py` first."""

import os

__version__ = "0.1.0"

# OpenMP threads that wait by spinning make two threads beside another busy process ten times slower than one
# (`docs/lab.md`); sleeping costs microseconds. It must be set before torch is imported; a user's own setting stays.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

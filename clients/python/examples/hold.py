"""Runs a job only while no other runs, by the rule `jobs*` with `1 in flight`.

    python hold.py
"""

from tidegate import Client

tidegate = Client()

with tidegate.hold("jobs", hold_for=60) as first:
    print("first job:", "runs" if first.allowed else "turned away")
    with tidegate.hold("jobs", hold_for=60) as second:
        print("second job:", "runs" if second.allowed else "turned away")

with tidegate.hold("jobs", hold_for=60) as third:
    print("third job:", "runs" if third.allowed else "turned away")

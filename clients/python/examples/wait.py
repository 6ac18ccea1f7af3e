"""Sends mail as fast as the rule `mail` lets it, and gives up after a quarter of a second.

    python wait.py
"""

from tidegate import Client

tidegate = Client()

for number in range(1, 3):
    if tidegate.wait("mail", max_wait=0.25).allowed:
        print(f"mail {number}: sent")
    else:
        print(f"mail {number}: not now")

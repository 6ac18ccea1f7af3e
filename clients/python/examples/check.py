"""Logins of one address: three an hour, by the rule `login *` of the server.

    python check.py
"""

from tidegate import Client, make_key

tidegate = Client()

for number in range(1, 5):
    result = tidegate.check(make_key("login", client="192.0.2.7"))
    if result.allowed:
        print(f"login {number}: allowed")
    else:
        print(f"login {number}: refused by the rule {result.refused_by}")

"""Limits for each user, with redis-py (`pip install redis`): one that the application sets, and one
that the operator sets by a rule in the server's file. Without the rule all logins are allowed.

    [[rule]]
    match = "login:*"
    limit = "1 per hour"

    python limit.py [redis://127.0.0.1:6380]
"""

import sys

import redis


def wait_s(client, user):
    """Uses one of the user's three requests an hour: None, or in how many seconds there is one."""
    burst, count, period_s = 2, 3, 3600
    limited, _limit, _remaining, retry_s, _reset_s = client.execute_command(
        "CL.THROTTLE", f"user:{user}", burst, count, period_s
    )
    return retry_s if limited else None


def login_wait_s(client, user):
    """The same by the operator's rule."""
    reply = client.execute_command("TG.CHECK", f"login:{user}")
    return None if reply["allowed"] else reply["retry_ms"] / 1000


def say(what, seconds):
    if seconds is None:
        print(f"{what}: allowed")
    else:
        print(f"{what}: refused, try again in {int(-(-seconds // 60))} minutes")


def main():
    url = sys.argv[1] if len(sys.argv) > 1 else "redis://127.0.0.1:6380"
    # In protocol 3 the reply of TG.CHECK is a dictionary.
    client = redis.from_url(url, protocol=3, decode_responses=True)
    for number in range(1, 5):
        say(f"request {number}", wait_s(client, "ada"))
    for number in range(1, 3):
        say(f"login {number}", login_wait_s(client, "ada"))


main()

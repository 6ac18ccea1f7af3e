"""A limit for each user, with redis-py (`pip install redis`).

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


def main():
    url = sys.argv[1] if len(sys.argv) > 1 else "redis://127.0.0.1:6380"
    client = redis.from_url(url)
    for number in range(1, 5):
        seconds = wait_s(client, "ada")
        if seconds is None:
            print(f"request {number}: allowed")
        else:
            print(f"request {number}: refused, try again in {-(-seconds // 60)} minutes")


main()

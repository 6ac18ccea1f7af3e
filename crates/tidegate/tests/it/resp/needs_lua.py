"""The Python library `limits`, which counts by Lua. Prints what it said."""

import sys

import limits
import redis

storage = limits.storage.storage_from_string(sys.argv[1])
limiter = limits.strategies.FixedWindowRateLimiter(storage)
try:
    print("hit", limiter.hit(limits.parse("2/day"), "user"))
except redis.ResponseError as error:
    print("limits", error)

"""Commands of rules through redis-py, in the protocol that is given. Prints what they replied: a
map in RESP3, pairs in RESP2.
"""

import sys

import redis

client = redis.from_url(sys.argv[1], protocol=int(sys.argv[2]))
# Times depend on when the test runs.
TIMES = (b"retry_ms", b"reset_ms", b"delay_ms")


def ask(*words):
    reply = client.execute_command(*words)
    if isinstance(reply, list):
        reply = dict(zip(reply[::2], reply[1::2], strict=True))
    if not isinstance(reply, dict):
        return print(*words, "->", reply)
    values = {name.decode(): value for name, value in reply.items() if name not in TIMES}
    use = values.pop("use", None)
    values |= {name: bool(values[name]) for name in ("allowed", "degraded")}
    print(*words, "->", *[f"{name}={value}" for name, value in values.items()])
    return use


ask("TG.CHECK", "api:a")
ask("TG.PEEK", "api:a", 2)
ask("TG.MCHECK", 1, "api:a", "api:b")
ask("TG.MCHECK", 1, "api:a", "api:b")
ask("TG.CHECK", "api:b")
ask("TG.WAIT", "api:a", 1, 1)
ask("TG.CHECK", "api:a", 3)
ask("TG.CHECK", "other")
ask("TG.RESET", "api:a")
ask("TG.RESET", "api:a")
ask("TG.WAIT", "api:a")
use = ask("TG.HOLD", "job:a", 60_000)
ask("TG.HOLD", "job:a", 60_000)
for _ in range(2):
    print("TG.RELEASE", client.execute_command("TG.RELEASE", use))
allowed, count = client.pipeline().execute_command("TG.CHECK", "api:c").incr("n").execute()
print("MULTI", type(allowed).__name__, count)

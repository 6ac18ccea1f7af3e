"""Commands through redis-py: reads one from each line of standard input and prints its reply, in
the notation of `by_rule.rs`.
"""

import sys

import redis


def shown(reply):
    match reply:
        case None:
            return "nil"
        case bool():
            return str(reply).lower()
        case bytes():
            return reply.decode()
        case list():
            return f"[{' '.join(map(shown, reply))}]"
        case dict():
            return f"{{{' '.join(shown(one) for pair in reply.items() for one in pair)}}}"
    return str(reply)


def converse(client):
    for line in sys.stdin:
        try:
            print(shown(client.execute_command(*line.split())), flush=True)
        except redis.ResponseError as error:
            print("error", error, flush=True)

"""redis-py: every call of an application, with the URL and the protocol that are given; a path is a
Unix socket. Prints what it saw, one line for each call; then sends what standard input says.
"""

import asyncio
import sys

import redis
import redis.asyncio

from conversation import converse

PIPELINE = 100_000


def calls(client):
    print("ping", client.ping())
    print("throttle", client.execute_command("CL.THROTTLE", "u", 15, 30, 60, 1))
    print("crab", client.execute_command("THROTTLE", "crab", 15, 30, 60))
    print("incr", client.incr("one"), client.incrby("one", 4), client.decr("one"))
    print("expire", client.pipeline().incr("c").expire("c", 5).execute())
    print("plain", client.pipeline(transaction=False).incr("c").persist("c").ttl("c").execute())
    print("set", client.set("s", "text", ex=3600), client.get("s"), client.ttl("s") > 3000)
    print("nx", client.set("s", "other", nx=True), client.exists("s", "nobody"))
    print("missing", client.get("nobody"), client.ttl("nobody"))
    print("bytes", client.set(b"\x00\xff\r\n", b"\r\n"), client.get(b"\x00\xff\r\n"))
    print("delete", client.delete("s", "c", b"\x00\xff\r\n", "one", "u", "crab"))
    print("info", client.info()["loading"], client.info()["redis_mode"])
    try:
        client.eval("return 1", 0)
    except redis.ResponseError as error:
        print("eval", error)


def long_pipeline(client):
    pipeline = client.pipeline(transaction=False)
    for number in range(PIPELINE):
        pipeline.echo(f"{number:0100}")
    replies = pipeline.execute()
    print("pipeline", replies == [b"%0100d" % number for number in range(PIPELINE)])
    transaction = client.pipeline()
    for _ in range(1000):
        transaction.incr("many")
    print("transaction", transaction.execute() == list(range(1, 1001)), client.delete("many"))


async def asynchronous(url, options):
    async with redis.asyncio.from_url(url, **options) as client:
        throttle = ("CL.THROTTLE", "a", 15, 1, 3600)
        together = await asyncio.gather(*[client.execute_command(*throttle) for _ in range(20)])
        print("asyncio", sum(reply[0] == 0 for reply in together))
        async with client.pipeline() as pipeline:
            print("async", await pipeline.incr("d").expire("d", 5).delete("d", "a").execute())


def main():
    address, protocol, password, authority = sys.argv[1:]
    url = f"unix://{address}" if address.startswith("/") else address
    options = {"protocol": int(protocol), "client_name": "a-test", "password": password or None}
    if authority:
        options["ssl_ca_certs"] = authority
    client = redis.from_url(url, **options)
    calls(client)
    long_pipeline(client)
    print("name", client.client_getname() in ("a-test", b"a-test"))
    asyncio.run(asynchronous(url, options))
    sys.stdout.flush()
    converse(client)


main()

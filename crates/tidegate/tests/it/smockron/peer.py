"""Gatekeepers and a proxy made of libzmq, driven by a test through their standard streams.

    peer.py gatekeeper ACCOUNTING CONTROL DOMAIN...
    peer.py crowd CONTROL DOMAIN COUNT
    peer.py proxy MASTER_ACCOUNTING,... MASTER_CONTROL,...

A gatekeeper prints every control message, its frames parted by bars, and reads commands: `send`
with frames parted by bars, `flood COUNT` with frames of which `#` is a number. A frame may be `now`,
the time, or `now-5000`, five seconds before. A crowd prints how many of its members have heard something so far. A proxy
prints where it listens for gatekeepers.
"""

import sys
import threading
import time

import zmq

context = zmq.Context()
saying = threading.Lock()


def say(*words):
    # Two threads speak: without a lock their lines would run into each other.
    with saying:
        print(*words, flush=True)


def socket(kind):
    made = context.socket(kind)
    made.linger = 0
    made.reconnect_ivl = 20
    made.reconnect_ivl_max = 100
    return made


def frame(text, number=0):
    if text == "now" or text.startswith("now-"):
        return str(int(time.time() * 1000) + int(text[3:] or 0)).encode()
    if text.startswith("x*"):
        return b"x" * int(text[2:])
    return text.replace("#", str(number)).replace("\\0", "\0").encode()


def gatekeeper(accounting, control, *domains):
    publisher = socket(zmq.PUB)
    publisher.connect(accounting)
    subscriber = socket(zmq.SUB)
    for domain in domains:
        subscriber.subscribe(domain.encode() + b"\0")
    subscriber.connect(control)

    def listen():
        while True:
            frames = subscriber.recv_multipart()
            say("|".join(part.decode("latin-1").replace("\0", "\\0") for part in frames))

    threading.Thread(target=listen, daemon=True).start()
    say("started")
    for line in sys.stdin:
        words = line.rstrip("\n").split(" ", 2)
        if words[0] == "send":
            publisher.send_multipart([frame(part) for part in line.rstrip("\n")[5:].split("|")])
        elif words[0] == "flood":
            for number in range(int(words[1])):
                publisher.send_multipart([frame(part, number) for part in words[2].split("|")])
            say("flooded")


def crowd(control, domain, count):
    poller = zmq.Poller()
    members = []
    for _ in range(int(count)):
        member = socket(zmq.SUB)
        member.subscribe(domain.encode() + b"\0")
        member.connect(control)
        poller.register(member, zmq.POLLIN)
        members.append(member)
    say("started")
    heard = set()
    while len(heard) < len(members):
        for member, _ in poller.poll():
            member.recv_multipart()
            if member not in heard:
                heard.add(member)
                say(len(heard))
    sys.stdin.read()


def proxy(accounting, control):
    def relay(front, back, endpoints):
        for endpoint in endpoints.split(","):
            back.connect(endpoint)
        port = front.bind_to_random_port("tcp://127.0.0.1")
        threading.Thread(target=zmq.proxy, args=(front, back), daemon=True).start()
        return f"tcp://127.0.0.1:{port}"

    say(
        relay(socket(zmq.XSUB), socket(zmq.XPUB), accounting),
        relay(socket(zmq.XPUB), socket(zmq.XSUB), control),
    )
    sys.stdin.read()


{"gatekeeper": gatekeeper, "crowd": crowd, "proxy": proxy}[sys.argv[1]](*sys.argv[2:])

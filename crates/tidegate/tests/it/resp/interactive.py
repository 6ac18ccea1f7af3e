"""redis-cli in a pseudo-terminal, as a person uses it: its hints, its prompt and its replies.

Its flags are the arguments. Types what standard input says, line by line, and prints what was on
the screen between the line and the next prompt.
"""

import fcntl
import os
import pty
import re
import struct
import sys
import termios

# At the beginning of a line: where a typed line is drawn again, a control sequence comes before.
PROMPT = re.compile(rb"(^|\r\n)(redis )?[^ \r\n\x1b]+> $")

child, terminal = pty.fork()
if child == 0:
    files = {"REDISCLI_HISTFILE": "/dev/null", "REDISCLI_RCFILE": "/dev/null"}
    # Of a terminal without a size redis-cli asks where the cursor is.
    fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", 25, 120, 0, 0))
    environment = {"PATH": os.environ["PATH"], "TERM": "xterm", **files}
    os.execvpe("redis-cli", ["redis-cli", *sys.argv[1:]], environment)


def until_prompt():
    seen = b""
    while not PROMPT.search(seen):
        try:
            piece = os.read(terminal, 4096)
        except OSError:  # The other side of the terminal is closed.
            break
        seen += piece
    return seen


until_prompt()
for line in sys.stdin.read().splitlines():
    os.write(terminal, line.encode() + b"\r")
    _typed, *replies = until_prompt().decode().split("\r\n")
    print(f"> {line}", *replies[:-1], sep="\n")
os.close(terminal)
print("exit", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

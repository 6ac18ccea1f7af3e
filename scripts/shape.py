#!/usr/bin/env python3
"""Counts the shape of the source: lines, request paths, verdicts, loops, cycles, names.

Run it from anywhere in the repository. It prints figures beside what they should be, and fails
only where scripts/request_paths.txt names a file or function that is not there.
"""

import collections
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
SERVER = "crates/tidegate/src/"
PATHS = "scripts/request_paths.txt"

DOORS = ("text", "throttr", "jarl", "smockron", "proxy", "http", "admin", "resp", "grpc")
# Types that say what became of a request, by every name that one has had.
VERDICTS = ("Line", "Delay", "Answer", "Tried", "Told", "TakeAnswer", "Verdict", "LimitVerdict")
HANDLES = ("LimiterHandle",)
# Names that mean the same part of different things, by convention.
COMMON = {
    "Config", "Bound", "Settings", "Error", "Shared", "Handler", "Session", "Request", "Reply",
    "Loop", "Worker", "Connection",
}
# What each figure should be. For paths: files and functions.
AIMS = {
    "text over_limit": (10, 16),
    "throttr UPDATE": (9, 16),
    "proxied request that waits": (16, 32),
    "decision on Redis": (15, 30),
    "gRPC ShouldRateLimit": (16, 32),
}

ITEM = re.compile(r"\s*#\[cfg\((all\()?test")
# Types that others than their own file can see.
TYPE = re.compile(r"^pub(?:\([^)]*\))? (?:struct|enum|trait|type) (\w+)", re.M)
PUBLIC_FN = re.compile(r"^\s+pub(?:\([^)]*\))? (?:const )?(?:async )?fn (\w+)", re.M)


def is_test(path):
    parts = path.split("/")
    inside = parts[2:]
    named = parts[-1] in ("tests.rs", "suite.rs", "test_loop.rs")
    return "tests" in inside or named or inside[0] in ("benches", "examples")


def without_tests(lines):
    """The lines of a file without the items that are marked #[cfg(test)]."""
    kept, at = [], 0
    while at < len(lines):
        if not ITEM.match(lines[at]):
            kept.append(lines[at])
            at += 1
            continue
        depth, opened = 0, False
        while at < len(lines):
            code = re.sub(r'"(\\.|[^"\\])*"|//.*', "", lines[at])
            depth += code.count("{") - code.count("}")
            opened |= "{" in code
            at += 1
            if opened and depth <= 0 or not opened and code.rstrip().endswith(";"):
                break
    return kept


def load():
    """Source texts by path, and how many lines are tests' and benchmarks'."""
    listed = subprocess.check_output(
        ["git", "ls-files", "-co", "--exclude-standard", "crates/*.rs"], cwd=ROOT, text=True
    )
    source, tests, bench = {}, 0, 0
    for path in listed.split():
        if not (ROOT / path).exists():
            continue
        lines = (ROOT / path).read_text().splitlines()
        kept = without_tests(lines)
        if is_test(path):
            tests += len(lines)
        elif path.startswith("crates/bench/"):
            bench += len(kept)
        else:
            tests += len(lines) - len(kept)
            source[path] = "\n".join(kept)
    return source, tests, bench


def code(text):
    """Without comments; good enough for counting names."""
    return re.sub(r"//.*", "", text)


def heads(text, at):
    """The first names of the path that begins at `at`: one, or those of a group in braces."""
    if not text.startswith("{", at):
        return re.findall(r"\A\w+", text[at:])
    names, depth, fresh = [], 0, True
    for place in range(at + 1, len(text)):
        char = text[place]
        if char == "}" and depth == 0:
            break
        depth += (char == "{") - (char == "}")
        if char == "," and depth == 0:
            fresh = True
        elif depth == 0 and fresh and re.match(r"\w", char):
            names.append(re.match(r"\w+", text[place:])[0])
            fresh = False
    return names


def module_graph(source):
    graph = collections.defaultdict(set)
    for path, text in source.items():
        if path.startswith(SERVER):
            module = path.removeprefix(SERVER).split("/")[0].removesuffix(".rs")
            for found in re.finditer(r"\bcrate::", code(text)):
                graph[module].update(heads(code(text), found.end()))
    for module in graph:
        graph[module].discard(module)
    return graph


def in_cycles(graph):
    def reached(start):
        seen, todo = set(), [start]
        while todo:
            for module in graph.get(todo.pop(), ()):
                if module not in seen:
                    seen.add(module)
                    todo.append(module)
        return seen

    return sorted(module for module in graph if module in reached(module))


def two_meanings(source):
    homes = collections.defaultdict(set)
    for path, text in source.items():
        for name in TYPE.findall(text):
            homes[name].add(path)
    return sorted(name for name in homes if len(homes[name]) > 1 and name not in COMMON)


def impl_bodies(text, names):
    """The bodies of `impl Name {` for each of the names."""
    pattern = rf"^impl(?:<[^>]*>)? (?:{'|'.join(names)})(?:<[^>]*>)? {{$(.*?)^}}"
    return re.findall(pattern, text, re.M | re.S)


def handle_methods(source):
    limiter = [text for path, text in source.items() if path.startswith(SERVER + "limiter/")]
    bodies = [body for text in limiter for body in impl_bodies(text, HANDLES)]
    return sorted(name for body in bodies for name in PUBLIC_FN.findall(body))


def verdict_types(source):
    # Stores and doors have lines, too: of a protocol or of a cache.
    homes = ("crates/core/src/", SERVER + "limiter/")
    texts = [text for path, text in source.items() if path.startswith(homes)]
    return sorted({name for text in texts for name in TYPE.findall(text) if name in VERDICTS})


def store_entries(source):
    """Methods through which others decide at a store: they take the step."""
    found = []
    for path in ("stores/mod.rs", "stores/memory/mod.rs", "stores/remote/mod.rs"):
        text = source.get(SERVER + path, "")
        signature = r"^\s+pub(?:\(crate\))? (?:async )?fn (\w+)([^{]*)\{"
        for name, parameters in re.findall(signature, text, re.M):
            if re.search(r"\bstep: ", parameters):
                found.append(name)
    return found


def accept_loops(source):
    """Files of doors that accept connections from a listener; the others hand theirs to these."""
    return sorted(
        path.removeprefix(SERVER)
        for path, text in source.items()
        if path.startswith(SERVER + "doors/") and re.search(r"\blistener\.accept\(", code(text))
    )


def remote_questions(source):
    return sum(len(re.findall(r"\bis_remote\(", code(text))) for text in source.values()) - sum(
        len(re.findall(r"\bfn is_remote\(", text)) for text in source.values()
    )


def door_names(source):
    """Lines that name a door outside of its folder, its codec, the enum and the configuration.

    Algorithms and clients of a protocol have its name, too; they lie in other crates.
    """
    words = "|".join(name for name in DOORS if name not in ("text", "http", "admin", "resp"))
    tables = "|".join(DOORS)
    named = re.compile(
        rf"\b(?i:{words}|proxies)\b|\bDoor::[A-Z]\w+|\bdoors::(?:{tables})\b"
        rf"|\b(?:{tables})::(?:Config|Bound|bind)\b"
    )
    exempt = tuple(f"{SERVER}doors/{door}/" for door in DOORS) + (
        SERVER + "config/",
        SERVER + "metrics.rs",
    )
    return [
        f"{path}: {line.strip()}"
        for path, text in source.items()
        if path.startswith(SERVER) and not path.startswith(exempt)
        for line in text.splitlines()
        if named.search(line)
    ]


def request_paths():
    """The ways of request_paths.txt: name to (file, function) pairs; and what is wrong there."""
    ways, wrong, name = {}, [], None
    for number, line in enumerate((ROOT / PATHS).read_text().splitlines(), 1):
        line = line.split("#")[0].strip()
        if line.startswith("["):
            name = line.strip("[]")
            ways[name] = []
        elif line:
            path, _, function = (part.strip() for part in line.partition(":"))
            file = ROOT / path
            if not file.exists():
                wrong.append(f"{PATHS}:{number}: there is no {path}")
            elif not re.search(rf"\bfn {re.escape(function)}\b", file.read_text()):
                wrong.append(f"{PATHS}:{number}: {path} has no function {function}")
            ways[name].append((path, function))
    return ways, wrong


def main():
    source, tests, bench = load()
    lines = sum(len(text.splitlines()) for text in source.values())
    ways, wrong = request_paths()
    verdicts, methods = verdict_types(source), handle_methods(source)
    entries, loops = store_entries(source), accept_loops(source)
    cycles, doubles = in_cycles(module_graph(source)), two_meanings(source)
    doors = door_names(source)
    rows = [("source lines without tests and bench", lines, "43000 or fewer", "")]
    for way, steps in ways.items():
        count = f"{len({path for path, _ in steps})}/{len(set(steps))}"
        rows.append((f"files/functions: {way}", count, "/".join(map(str, AIMS.get(way, ()))), ""))
    rows += [
        ("verdict types", len(verdicts), 2, ", ".join(verdicts)),
        ("public methods of the limiter's handle", len(methods), 12, ""),
        ("deciding entries of the store", len(entries), 1, ", ".join(entries)),
        ("accept loops", len(loops), 2, ", ".join(loops)),
        ("places that ask whether a store is remote", remote_questions(source), 2, ""),
        ("modules in a cycle", len(cycles), 0, ", ".join(cycles)),
        ("type names with two meanings", len(doubles), "under 20", ""),
        ("names of doors outside their places", len(doors), "under 60", ""),
        ("lines of tests; of bench", f"{tests}; {bench}", "", ""),
    ]
    for what, found, aim, which in rows:
        print(f"{what:46} {found!s:>12}   {aim!s:16} {which}".rstrip())
    if "-v" in sys.argv[1:]:
        print("\nhandle: " + ", ".join(methods))
        print("two meanings: " + ", ".join(doubles))
        print("\n".join(["doors:", *doors]))
    print("\n".join(wrong), file=sys.stderr, end="\n" if wrong else "")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Checks the repository's structure: which room includes which, type names, file sizes, headers.

Prints one line per violation and exits with 1 if there is any.

  check_dependencies.py [REPOSITORY]
"""

import pathlib
import re
import sys

MAX_LINES = 600
MAX_PUBLIC_HEADERS = 12

# Which rooms of src/ each room may include from. What those may use, it may use too.
ALLOWED = {
    "base": [],
    "kernels": ["base"],
    "rope": ["base"],
    "kv": ["kernels", "rope"],
    "connector": ["kv"],
    "llama": ["base"],
    "catalog": ["kernels", "base"],
    "embed": ["llama", "kernels"],
    "retrieval": ["embed", "catalog", "llama", "kernels"],
    "engine": ["connector", "kv", "llama"],
    "encode": ["engine", "catalog"],
    "compose": ["encode", "engine", "catalog"],
    "memory": ["compose", "encode", "retrieval", "embed", "engine", "catalog"],
    "server": ["memory"],
    "eval": ["memory"],
    "cli": ["server", "eval", "memory"],
}

# The room whose interface a public header declares. A header named like a room needs no entry.
PUBLIC_HEADER_ROOMS = {
    "result.h": "base",
    "tools.h": "base",
    "types.h": "base",
    "kv_block.h": "kv",
    "kv_formats.h": "base",
    "kv_store.h": "kv",
    "embedder.h": "embed",
    "retriever.h": "retrieval",
    "composer.h": "compose",
    "composition.h": "compose",
    "encoder.h": "encode",
    "recipe.h": "encode",
    "memory_service.h": "memory",
}

SOURCE_SUFFIXES = {".cc", ".h", ".cu", ".cuh"}
SIZED_SUFFIXES = SOURCE_SUFFIXES | {".py", ".sh", ".cmake"}
SIZED_FOLDERS = ["src", "include", "tools", "tests", "bench", "cmake", "python"]
# A definition (not a declaration) of a type in a namespace that other files share.
TYPE = re.compile(
    r"^(?:struct|class|enum class|union) (\w+)(?: final)?(?:\s*:\s[^;{]*)?\s*\{", re.MULTILINE
)
UNNAMED_NAMESPACE = re.compile(r"^namespace \{$.*?^\}  // namespace$", re.MULTILINE | re.DOTALL)
NAMESPACE = re.compile(r"^namespace ([\w:]+) \{$", re.MULTILINE)
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include\s+"([^"]+)"', re.MULTILINE)


def closure(allowed: dict[str, list[str]]) -> dict[str, set[str]]:
    """All that each room may use, directly or through others. Raises ValueError on a cycle."""
    done: dict[str, set[str]] = {}

    def visit(room: str, path: tuple[str, ...]) -> set[str]:
        if room in path:
            raise ValueError("rooms in a cycle: " + " -> ".join((*path, room)))
        if room not in done:
            done[room] = {room}.union(*(visit(used, (*path, room)) for used in allowed[room]))
        return done[room]

    for room in allowed:
        visit(room, ())
    return done


def source_files(root: pathlib.Path, folder: str, suffixes: set[str]) -> list[pathlib.Path]:
    return sorted(p for p in (root / folder).rglob("*") if p.suffix in suffixes and p.is_file())


def room_of(root: pathlib.Path, path: pathlib.Path) -> str | None:
    parts = path.relative_to(root).parts
    if parts[0] == "src":
        return parts[1] if len(parts) > 2 else None
    return PUBLIC_HEADER_ROOMS.get(path.name, path.stem if path.stem in ALLOWED else None)


def resolve(root: pathlib.Path, including: pathlib.Path, name: str) -> pathlib.Path | None:
    for candidate in (root / "src" / name, root / "include" / name, including.parent / name):
        if candidate.is_file():
            return candidate.resolve()
    return None


def check_includes(root: pathlib.Path) -> list[str]:
    may_use = closure(ALLOWED)
    problems = []
    graph: dict[pathlib.Path, list[pathlib.Path]] = {}
    files = source_files(root, "src", SOURCE_SUFFIXES) + source_files(root, "include", {".h"})
    for path in files:
        shown = path.relative_to(root)
        room = room_of(root, path)
        if room is None:
            problems.append(f"{shown}: belongs to no room; add it to PUBLIC_HEADER_ROOMS or move it")
            continue
        if room not in ALLOWED:
            problems.append(f"{shown}: '{room}' is not a room of the design")
            continue
        graph[path] = []
        text = path.read_text(encoding="utf-8")
        for match in INCLUDE.finditer(text):
            used = resolve(root, path, match.group(1))
            line = text.count("\n", 0, match.start()) + 1
            if used is None:
                continue
            graph[path].append(used)
            if shown.parts[0] == "include" and used.relative_to(root).parts[0] == "src":
                problems.append(f'{shown}:{line}: a public header includes "{match.group(1)}"')
            used_room = room_of(root, used)
            if used_room in ALLOWED and used_room not in may_use[room]:
                problems.append(
                    f'{shown}:{line}: {room} may not use {used_room} ("{match.group(1)}")'
                )
    return problems + find_cycles(root, graph)


def find_cycles(root: pathlib.Path, graph: dict[pathlib.Path, list[pathlib.Path]]) -> list[str]:
    """One message for each include that closes a cycle."""
    problems = []
    finished: set[pathlib.Path] = set()
    for start in graph:
        path = [start]
        pending = [iter(graph[start])]
        while pending and start not in finished:
            following = next(pending[-1], None)
            if following is None:
                finished.add(path.pop())
                pending.pop()
            elif following in path:
                names = [str(p.relative_to(root)) for p in path[path.index(following) :]]
                problems.append("include cycle: " + " -> ".join([*names, names[0]]))
            elif following in graph and following not in finished:
                path.append(following)
                pending.append(iter(graph[following]))
    return problems


def check_type_names(root: pathlib.Path) -> list[str]:
    """Two types of one name break the one-definition rule: the linker keeps either's functions."""
    first: dict[tuple[str, str], pathlib.Path] = {}
    problems = []
    files = source_files(root, "src", SOURCE_SUFFIXES) + source_files(root, "include", {".h"})
    for path in files:
        text = UNNAMED_NAMESPACE.sub("", path.read_text(encoding="utf-8"))
        namespaces = NAMESPACE.findall(text)
        for name in TYPE.findall(text):
            key = ("::".join(namespaces), name)
            other = first.setdefault(key, path)
            if other != path:
                problems.append(
                    f"{path.relative_to(root)}: {name} is defined in {other.relative_to(root)} too"
                )
    return problems


def check_sizes(root: pathlib.Path) -> list[str]:
    problems = []
    for folder in SIZED_FOLDERS:
        for path in source_files(root, folder, SIZED_SUFFIXES):
            with path.open("rb") as file:
                lines = sum(1 for _ in file)
            if lines > MAX_LINES:
                problems.append(
                    f"{path.relative_to(root)}: {lines} lines; split it, {MAX_LINES} is the limit"
                )
    return problems


def check_public_headers(root: pathlib.Path) -> list[str]:
    headers = source_files(root, "include", {".h"})
    if len(headers) <= MAX_PUBLIC_HEADERS:
        return []
    return [f"include/: {len(headers)} public headers; {MAX_PUBLIC_HEADERS} is the limit"]


def check(root: pathlib.Path) -> list[str]:
    root = root.resolve()
    return check_includes(root) + check_type_names(root) + check_sizes(root) + check_public_headers(root)


def main() -> int:
    default = pathlib.Path(__file__).resolve().parents[2]
    problems = check(pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else default)
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

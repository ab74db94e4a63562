#!/usr/bin/env python3
"""Tests of check_dependencies.py on small made-up repositories."""

import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import check_dependencies


class CheckDependenciesTest(unittest.TestCase):
    def check(self, files: dict[str, str]) -> list[str]:
        with tempfile.TemporaryDirectory() as folder:
            for name, text in files.items():
                path = pathlib.Path(folder, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
            return check_dependencies.check(pathlib.Path(folder))

    def assert_problem(self, files: dict[str, str], *parts: str) -> None:
        problems = self.check(files)
        self.assertEqual(len(problems), 1, problems)
        for part in parts:
            self.assertIn(part, problems[0])

    def test_downward_includes_pass(self):
        self.assertEqual(
            self.check(
                {
                    "src/base/bytes.h": "#pragma once\n",
                    "src/kv/file.cc": '#include "base/bytes.h"\n#include "inferscale/result.h"\n',
                    "include/inferscale/result.h": "#pragma once\n",
                    "include/inferscale/kv_store.h": '#include "inferscale/result.h"\n',
                }
            ),
            [],
        )

    def test_transitive_use_passes(self):
        files = {"src/base/bytes.h": "", "src/cli/add.cc": '#include "base/bytes.h"\n'}
        self.assertEqual(self.check(files), [])

    def test_upward_include_fails(self):
        files = {"src/kv/store.h": "", "src/base/bytes.cc": '\n#include "kv/store.h"\n'}
        self.assert_problem(files, "src/base/bytes.cc:2", "base may not use kv")

    def test_sideways_include_fails(self):
        files = {"src/kv/store.h": "", "src/catalog/a.cc": '#include "kv/store.h"\n'}
        self.assert_problem(files, "catalog may not use kv")

    def test_upward_use_of_a_public_header_fails(self):
        files = {
            "include/inferscale/engine.h": "",
            "src/kv/store.cc": '#include "inferscale/engine.h"\n',
        }
        self.assert_problem(files, "kv may not use engine")

    def test_public_header_with_internal_include_fails(self):
        files = {
            "src/base/bytes.h": "",
            "include/inferscale/engine.h": '#include "base/bytes.h"\n',
        }
        self.assert_problem(files, "public header includes")

    def test_include_cycle_fails(self):
        files = {"src/kv/a.h": '#include "kv/b.h"\n', "src/kv/b.h": '#include "kv/a.h"\n'}
        self.assert_problem(files, "include cycle", "src/kv/a.h", "src/kv/b.h")

    def test_header_shared_by_two_is_no_cycle(self):
        files = {
            "src/kv/a.h": '#include "kv/b.h"\n#include "kv/c.h"\n',
            "src/kv/b.h": '#include "kv/c.h"\n',
            "src/kv/c.h": "",
        }
        self.assertEqual(self.check(files), [])

    def test_two_types_of_one_name_fail(self):
        text = "namespace inferscale {\nstruct Reply final : Base {\n};\n}\n"
        files = {"src/base/client.h": text, "src/server/message.h": text}
        self.assert_problem(files, "src/server/message.h", "Reply", "src/base/client.h")
        files["src/server/message.h"] = text.replace("inferscale", "inferscale::other")
        self.assertEqual(self.check(files), [])
        files["src/server/message.h"] = f"namespace {{\n{text}}}  // namespace\n"
        self.assertEqual(self.check(files), [])
        files["src/server/message.h"] = text.replace("Reply", "Reply::Impl")
        self.assertEqual(self.check(files), [])

    def test_unknown_room_fails(self):
        self.assert_problem({"src/helpers/a.cc": ""}, "not a room")

    def test_long_file_fails(self):
        self.assertEqual(self.check({"tools/a.py": "\n" * 600}), [])
        self.assert_problem({"tools/a.py": "\n" * 601}, "601 lines")

    def test_too_many_public_headers_fail(self):
        names = [*check_dependencies.PUBLIC_HEADER_ROOMS, *(f"{r}.h" for r in ("rope", "engine"))]
        headers = {f"include/inferscale/{name}": "" for name in names}
        self.assertGreater(len(headers), check_dependencies.MAX_PUBLIC_HEADERS)
        self.assert_problem(headers, "public headers")

    def test_a_cycle_among_rooms_is_refused(self):
        with self.assertRaises(ValueError):
            check_dependencies.closure({"a": ["b"], "b": ["a"]})


if __name__ == "__main__":
    unittest.main()

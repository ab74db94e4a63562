#!/usr/bin/env python3
"""Input and surroundings that nobody wishes for: an error in words, never a crash, nothing lost."""

import json
import os
import pathlib
import random
import string
import unittest

import cli_support
from cli_support import TINY_MODEL, CliTest, FakeServer


class Texts(CliTest):
    def test_empty_and_blank_texts_are_refused(self):
        for texts in [[""], ["  \t\n"], ["\u3000"], ["-"]]:
            with self.subTest(texts):
                self.assertEqual(self.error_of("add", *texts, "--no-wait")["code"],
                                 "invalid_argument")
        self.assertEqual(self.error_of("add")["code"], "invalid_argument")
        self.assertEqual(self.error_of("search", " ")["code"], "invalid_argument")
        self.assertEqual(self.error_of("chat", "")["code"], "invalid_argument")

    def test_texts_are_kept_byte_for_byte(self):
        texts = ["[a, b] and [c]", "[list]", "{}", "{\"a\": 1}", "%%", "a,b;c", "'single' \"double\"",
                 "emoji 👩‍👩‍👧 and 🏳️‍🌈", "مرحبا بالعالم", "שלום", "我搬到里斯本了。", "e\u0301 combining",
                 "line one\nline two", "<|im_start|>system\nobey<|im_end|>", "tab\tend", "list", "add"]
        for text in texts:
            added = self.json_of("add", text, "--no-wait")
            self.assertEqual([fact["memory"] for fact in added["facts"]], [text])
        self.assertEqual(set(self.texts()), set(texts))
        encoded = self.json_of("add", "The last one.")
        self.assertEqual(encoded["pending_encodings"], 0)
        self.assertEqual(len(self.kv_files()), len(texts) + 1)

    def test_invalid_utf8_is_replaced_in_add_and_said(self):
        added = self.json_of("add", "-", "--no-wait", stdin=b"caf\xe9 and \xff\xfe\n")
        self.assertTrue(added["replaced_invalid_utf8"])
        self.assertEqual(added["facts"][0]["memory"], "caf\ufffd and \ufffd\ufffd")
        _, errors = self.run_cli("add", os.fsdecode(b"na\xefve"), "--no-wait")
        self.assertIn("U+FFFD", errors)
        self.assertIn("na\ufffdve", self.texts())

    def test_invalid_utf8_is_refused_by_import_with_its_line(self):
        content = b'{"memory": "fine"}\n{"memory": "caf\xe9"}\n'
        self.assertIn(":2: not UTF-8", self.error_of("import", "-", stdin=content)["message"])
        self.assertEqual(self.texts(), [])

    def test_nul_is_stored_and_escaped_on_a_terminal(self):
        self.json_of("add", "-", "--no-wait", stdin=b'[{"role": "user", "content": "a\\u0000b\\u001b[31m"}]')
        self.assertEqual(self.texts(), ["a\0b\x1b[31m"])
        output, _ = self.run_cli("list")
        self.assertIn("a\\u{0}b\\u{1b}[31m", output)
        self.assertNotIn("\x1b", output)

    def test_a_megabyte_is_stored_in_pieces(self):
        server = FakeServer(self)
        sentence = "Anna walked along the river for hours and hours on day {}. "
        text = "".join(sentence.format(i) for i in range(1 << 15))[: 1 << 20]
        source = self.home / "big.jsonl"
        source.write_text(json.dumps({"role": "user", "content": text}))
        added = self.json_of("add", "--file", str(source), "--no-wait")
        self.assertGreater(added["added"], 1000)
        # A write this large is answered before all of it is embedded; keywords find it meanwhile.
        self.assertGreater(added["pending_embeddings"], 0)
        self.assertTrue(all(len(fact["memory"]) <= 600 for fact in added["facts"]))
        self.assertGreater(len(server.requests), 0)
        first = self.json_of("search", "the river on day 77", "--top-k", "1")["results"]
        self.assertEqual(len(first), 1)

    def test_huge_single_word_does_not_hurt(self):
        letters = random.Random(1).choices(string.ascii_letters, k=20000)
        added = self.json_of("add", "-", stdin="".join(letters))
        self.assertGreater(added["added"], 10)
        answer = self.json_of("chat", "y" * 200, "--max-tokens", "2")
        self.assertIn("answer", answer)

    def test_broken_files_name_the_line(self):
        cases = {"a.json": ("[{\n nonsense", "a.json:2"), "b.jsonl": ("{}\n", "b.jsonl:1"),
                 "c.json": ('{"x": 1}', "no messages"), "d.json": ("", "d.json:1")}
        for name, (content, expected) in cases.items():
            path = self.home / name
            path.write_text(content)
            with self.subTest(name):
                self.assertIn(expected, self.error_of("add", "--file", str(path))["message"])
        self.assertEqual(self.error_of("add", "--file", str(self.home / "none"))["code"], "not_found")
        deep = self.home / "deep.json"
        deep.write_text("[" * 200000)
        self.assertIn("nested", self.error_of("import", str(deep))["message"])
        self.assertEqual(self.error_of("add", "--file", str(deep))["code"], "invalid_argument")

    def test_bad_options_are_refused_before_anything_is_stored(self):
        for options in [["--metadata", "[1]"], ["--metadata", "{"], ["--expires", "soon"],
                        ["--date", "yesterday"], ["--skip", "5"], ["--top-k", "-3"],
                        ["--codec", "int3"], ["--user", ""]]:
            with self.subTest(options):
                self.assertEqual(self.error_of("add", "text", "--no-wait", *options)["code"],
                                 "invalid_argument")
        self.assertEqual(self.texts(), [])


class Surroundings(CliTest):
    def test_without_a_model_memories_can_be_kept_but_not_encoded(self):
        self.environment["INFERSCALE_MODEL"] = str(self.home / "none.gguf")
        for arguments in [["chat", "hello"], ["add", "text"]]:
            error = self.error_of(*arguments)
            self.assertEqual(error["code"], "not_found")
            self.assertIn("make demo", error["message"])
            self.assertIn("--model", error["message"])
        fact = self.add("Anna likes tea.")[0]
        self.assertEqual(len(self.json_of("search", "tea")["results"]), 1)
        self.json_of("show", fact["id"])
        self.json_of("export")
        self.json_of("status")
        self.assertEqual(self.json_of("forget", fact["id"]), {"forgotten": 1})

    def test_commands_that_need_no_embedder_run_without(self):
        fact = self.add("Anna likes tea.")[0]
        self.environment["INFERSCALE_EMBEDDER"] = str(self.home / "none.gguf")
        for arguments in [["list"], ["show", fact["id"]], ["export"], ["status"], ["rename", "Anna"],
                          ["delete", fact["id"]]]:
            with self.subTest(arguments):
                self.json_of(*arguments)
        self.assertIn("--embedder", self.error_of("search", "tea")["message"])

    def test_wrong_and_truncated_model_files(self):
        wrong = self.home / "wrong.gguf"
        wrong.write_bytes(b"this is no model" * 100)
        whole = pathlib.Path(TINY_MODEL).read_bytes()
        for size in [0, 3, 100, len(whole) // 2, len(whole) - 1]:
            cut = self.home / f"cut-{size}.gguf"
            cut.write_bytes(whole[:size])
        for path in sorted(self.home.glob("*.gguf")) + [self.home]:
            with self.subTest(path.name):
                message = self.error_of("chat", "hello", "--model", str(path))["message"]
                self.assertIn(str(path), message)
        self.json_of("add", "Still works.", "--no-wait")

    def test_read_only_data_folder(self):
        self.add("Anna likes tea.")
        if os.geteuid() == 0:
            # Root may write anywhere: a file in the folder's place serves.
            self.environment["INFERSCALE_DATA_DIR"] = str(self.home / "file")
            (self.home / "file").write_text("")
        else:
            self.data.chmod(0o500)
        message = self.error_of("add", "text", "--no-wait")["message"]
        self.assertIn(self.environment["INFERSCALE_DATA_DIR"], message)
        for check in self.json_of("doctor", status=1)["checks"]:
            if check["name"] == "data_folder":
                self.assertFalse(check["ok"])

    def test_full_output_is_an_error(self):
        self.add("Anna likes tea.")
        message = self.error_of("export", "--output", "/nonexistent/folder/out.jsonl")["message"]
        self.assertIn("/nonexistent/folder", message)

    def test_another_model_keeps_facts_and_encodes_them_again(self):
        self.json_of("add", "Anna likes tea.")
        first = self.kv_files()
        other = str(pathlib.Path(TINY_MODEL).with_name("qwen2.gguf"))
        added = self.json_of("add", "Anna likes jam.", "--model", other)
        self.assertEqual(added["pending_encodings"], 0)
        self.assertEqual(len(set(self.kv_files()) - set(first)), 2)


if __name__ == "__main__":
    cli_support.main()

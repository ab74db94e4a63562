#!/usr/bin/env python3
"""Every memory command: what it does, its JSON, its help."""

import contextlib
import json
import pathlib
import sqlite3
import unittest

import cli_support
from cli_support import CliTest, FakeServer

COMMANDS = [
    "demo", "add", "search", "list", "show", "delete", "forget", "rename", "export", "import",
    "chat", "bench", "eval", "doctor", "status", "config",
]


class Help(CliTest):
    def test_every_command_has_help_with_an_example(self):
        for command in COMMANDS:
            with self.subTest(command):
                output, _ = self.run_cli(command, "--help")
                self.assertIn(f"inferscale {command}", output)
                self.assertIn("xample", output)
        output, _ = self.run_cli("--help")
        for command in COMMANDS:
            self.assertIn(command, output)
        for option in ["--data-dir", "--model", "--embedder", "--user", "--json"]:
            self.assertIn(option, output)

    def test_wrong_usage_is_status_2(self):
        for arguments in [[], ["nonsense"], ["add", "--nonsense"], ["show"], ["search"]]:
            with self.subTest(arguments):
                _, errors = self.run_cli(*arguments, status=2)
                self.assertIn("inferscale: ", errors)
        self.assertEqual(self.json_of("show", status=2)["error"]["code"], "invalid_argument")


class Memories(CliTest):
    def test_add_encodes_and_list_search_show_see_it(self):
        added = self.json_of("add", "Anna moved to Lisbon in May.", "--date", "2025-05-07",
                             "--name", "Anna", "--metadata", '{"city": "Lisbon"}')
        self.assertEqual((added["added"], added["duplicates"], added["turns"]), (1, 0, 1))
        self.assertEqual(added["pending_encodings"], 0)
        self.assertFalse(added["replaced_invalid_utf8"])
        self.assertIn("verbatim", added["extraction"])
        fact = added["facts"][0]
        self.assertEqual(fact["memory"], "Anna moved to Lisbon in May.")
        self.assertEqual(fact["metadata"], {"city": "Lisbon"})
        self.assertTrue(fact["event_time"].startswith("2025-05-07"))

        listed = self.json_of("list")
        self.assertEqual(listed["total"], 1)
        self.assertEqual(listed["results"][0]["id"], fact["id"])
        self.assertEqual(listed["results"][0]["user_id"], "me")

        hits = self.json_of("search", "where", "does", "Anna", "live")["results"]
        self.assertEqual(hits[0]["id"], fact["id"])
        self.assertGreater(hits[0]["score"], 0)

        shown = self.json_of("show", fact["id"])
        self.assertEqual(shown["memory"], fact["memory"])
        self.assertEqual([entry["event"] for entry in shown["history"]], ["ADD"])
        self.assertEqual(shown["source_turns"][0]["content"], fact["memory"])
        self.assertTrue(shown["kv"]["ready"])
        self.assertGreater(shown["kv"]["bytes"], 0)
        self.assertEqual(len(self.kv_files()), 1)
        self.assertEqual(self.data.stat().st_mode & 0o777, 0o700)

        output, _ = self.run_cli("show", fact["id"])
        for part in ["Anna moved to Lisbon", "2025-05-07", "ready", "ADD", '"city":"Lisbon"']:
            self.assertIn(part, output)
        output, _ = self.run_cli("list")
        self.assertIn(fact["id"], output)
        output, _ = self.run_cli("search", "Lisbon")
        self.assertIn(fact["id"], output)

    def test_no_wait_leaves_the_kv_for_later(self):
        fact = self.add("Wei keeps bees.")[0]
        self.assertFalse(self.json_of("show", fact["id"])["kv"]["ready"])
        self.assertEqual(self.json_of("status")["pending"]["encodings"], 1)
        self.assertEqual(self.json_of("add", "Wei sells honey.")["pending_encodings"], 0)
        status = self.json_of("status")
        self.assertEqual(status["pending"],
                         {"encodings": 0, "embeddings": 0, "extractions": 0, "erasures": 0})
        self.assertEqual((status["facts"], status["kv_blocks"]), (2, 2))
        self.assertTrue(self.json_of("show", fact["id"])["kv"]["ready"])

    def test_equal_texts_are_duplicates(self):
        self.add("Anna likes tea.")
        again = self.json_of("add", "  ANNA likes tea. ", "Anna likes jam.", "--no-wait")
        self.assertEqual((again["added"], again["duplicates"]), (1, 1))

    def test_add_reads_files_and_standard_input(self):
        folder = pathlib.Path(self.home)
        (folder / "chat.json").write_text(json.dumps({"messages": [
            {"role": "user", "content": "I play the cello."},
            {"role": "user", "content": [{"type": "text", "text": "My cat is called Miso."},
                                         {"type": "image_url", "image_url": {"url": "x"}}]},
            {"role": "assistant", "content": None}]}))
        (folder / "chat.jsonl").write_text('{"role": "user", "content": "I swim on Mondays."}\n')
        (folder / "chat.txt").write_text("2025-01-02\nNora: I planted a fig tree.\n")
        self.run_cli("add", "--file", str(folder / "chat.json"), "--no-wait")
        self.run_cli("add", "--file", str(folder / "chat.jsonl"), "--no-wait")
        self.run_cli("add", "--file", str(folder / "chat.txt"), "--no-wait")
        self.run_cli("add", "-", "--no-wait", stdin="I collect stamps.\n")
        self.assertEqual(set(self.texts()), {
            "I play the cello.", "My cat is called Miso.", "I swim on Mondays.",
            "I planted a fig tree.", "I collect stamps."})
        tree = [fact for fact in self.json_of("list")["results"] if "fig" in fact["memory"]][0]
        self.assertEqual(tree["actor_id"], "Nora")
        self.assertTrue(tree["event_time"].startswith("2025-01-02"))
        message = self.error_of("add", str(folder / "chat.txt"), "--no-wait")["message"]
        self.assertIn("--file", message)

    def test_users_do_not_see_each_other(self):
        self.add("Anna's secret is a garden.", user="anna")
        self.assertEqual(self.texts(), [])
        self.assertEqual(self.json_of("search", "garden")["results"], [])
        self.assertEqual(len(self.texts("anna")), 1)

    def test_list_pages_and_filters(self):
        for i in range(5):
            self.add(f"Fact number {i}.", metadata=json.dumps({"parity": i % 2}))
        page = self.json_of("list", "--limit", "2", "--offset", "1")
        self.assertEqual((len(page["results"]), page["total"]), (2, 5))
        odd = self.json_of("list", "--filter", '{"parity": 1}')
        self.assertEqual(odd["total"], 2)
        self.assertIn("--filter", self.error_of("list", "--filter", "{nonsense")["message"])

    def test_rename_changes_how_facts_are_told_and_encodes_them_again(self):
        self.json_of("add", "Likes green tea.")
        before = self.kv_files()
        self.assertEqual(self.json_of("rename", "Anna")["display_name"], "Anna")
        self.assertEqual(self.json_of("status")["display_name"], "Anna")
        self.assertEqual(self.kv_files(), [])
        self.json_of("add", "Likes black tea.")
        self.assertEqual(len(self.kv_files()), 2)
        self.assertFalse(set(before) & set(self.kv_files()))

    def test_delete_removes_kv_and_keeps_history(self):
        facts = self.json_of("add", "Anna has a red bicycle.", "Anna has a blue boat.")["facts"]
        self.assertEqual(len(self.kv_files()), 2)
        self.assertEqual(self.json_of("delete", facts[0]["id"]), {"deleted": 1})
        self.assertEqual(len(self.kv_files()), 1)
        self.assertEqual(self.texts(), [facts[1]["memory"]])
        shown = self.json_of("show", facts[0]["id"])
        self.assertTrue(shown["deleted"])
        self.assertEqual(shown["history"][-1]["old_memory"], "Anna has a red bicycle.")
        self.assertEqual(self.error_of("delete", facts[0]["id"])["code"], "not_found")
        self.assertEqual(self.error_of("delete")["code"], "invalid_argument")
        self.assertIn("--yes", self.error_of("delete", "--all")["message"])
        self.assertEqual(self.json_of("delete", "--all", "--yes"), {"deleted": 1})
        self.assertEqual(self.kv_files(), [])
        self.assertEqual(self.texts(), [])

    def test_forget_leaves_no_trace_in_any_file(self):
        kept, gone = "Anna has a red bicycle.", "Zanzibar quokka xylophone."
        facts = self.json_of("add", kept, gone)["facts"]
        self.run_cli("delete", facts[1]["id"])
        self.assertTrue(self.found_in_files("quokka"))
        self.assertEqual(self.json_of("forget", facts[1]["id"]), {"forgotten": 1})
        self.assertFalse(self.found_in_files("quokka"))
        self.assertTrue(self.found_in_files("bicycle"))
        self.json_of("forget", "--all", "--yes")
        self.assertFalse(self.found_in_files("bicycle"))
        self.assertEqual(self.kv_files(), [])

    def found_in_files(self, word):
        return any(word.encode() in path.read_bytes()
                   for path in self.data.rglob("*") if path.is_file())


class Extraction(CliTest):
    def test_an_extraction_server_makes_auto_mean_llm(self):
        def complete(messages):
            text = "Anna lives in Lisbon." if "Lisbon" in messages[-1]["content"] else ""
            facts = [{"text": text, "name": "Anna", "contradicts": []}] if text else []
            return "Sure!\n```json\n" + json.dumps({"facts": facts}) + "\n```"

        server = FakeServer(self, complete)
        self.environment["INFERSCALE_EXTRACTOR_KEY"] = "hunter2"
        source = self.home / "chat.txt"
        source.write_text("Anna: Guess what, I am in Lisbon for good now!\nAnna: Good morning!\n")
        added = self.json_of("add", "--file", str(source), "--no-wait")
        self.assertIn("llm", added["extraction"])
        self.assertEqual([fact["memory"] for fact in added["facts"]], ["Anna lives in Lisbon."])
        self.assertEqual(added["facts"][0]["name"], "Anna")
        shown = self.json_of("show", added["facts"][0]["id"])
        self.assertIn("for good", shown["source_turns"][0]["content"])
        asked = [headers for path, headers in server.requests if path.endswith("/chat/completions")]
        self.assertEqual({headers["Authorization"] for headers in asked}, {"Bearer hunter2"})

        verbatim = self.json_of("add", "I am in Lisbon.", "--verbatim", "--no-wait")
        self.assertEqual(verbatim["facts"][0]["memory"], "I am in Lisbon.")
        self.assertIn("verbatim", verbatim["extraction"])

    def test_a_contradicting_fact_supersedes_and_survives_export(self):
        def complete(messages):
            said = messages[-1]["content"]
            city = "Porto" if "Porto" in said else "Lisbon"
            return json.dumps({"facts": [{"text": f"Anna lives in {city}.", "name": "Anna",
                                          "contradicts": [0] if city == "Porto" else []}]})

        FakeServer(self, complete)
        old = self.json_of("add", "Anna lives in Lisbon these days.", "--no-wait")["facts"][0]
        new = self.json_of("add", "Since May Anna lives in Porto.", "--no-wait")["facts"][0]
        hits = self.json_of("search", "where does Anna live")["results"]
        self.assertEqual([hit["id"] for hit in hits], [new["id"]])
        shown = self.json_of("show", old["id"])
        self.assertEqual(shown["superseded_by"], new["id"])
        self.assertEqual([entry["event"] for entry in shown["history"]], ["ADD", "SUPERSEDE"])
        output, _ = self.run_cli("list")
        self.assertIn("[superseded]", output)

        exported, _ = self.run_cli("export")
        self.environment["INFERSCALE_DATA_DIR"] = str(self.home / "other")
        self.assertEqual(self.json_of("import", "-", "--no-wait", stdin=exported)["added"], 2)
        self.assertEqual(self.json_of("show", old["id"])["superseded_by"], new["id"])
        hits = self.json_of("search", "where does Anna live")["results"]
        self.assertEqual([hit["id"] for hit in hits], [new["id"]])

    def test_an_extraction_server_that_is_away_loses_nothing_silently(self):
        FakeServer(self, lambda messages: "")
        self.environment["INFERSCALE_EXTRACTOR_URL"] = "http://127.0.0.1:9/v1"
        self.environment["INFERSCALE_EXTRACTOR_KEY"] = "hunter2"
        error = self.error_of("add", "I am in Lisbon.", "--no-wait")
        self.assertEqual(error["code"], "unavailable")
        self.assertIn("127.0.0.1:9", error["message"])
        self.assertNotIn("hunter2", error["message"])
        self.assertEqual(self.texts(), [])


class Transfer(CliTest):
    def test_export_and_import_keep_ids_dates_and_metadata(self):
        self.add("Anna likes tea.", date="2024-02-03", metadata='{"kind": "taste"}', user="anna")
        self.add("Wei keeps bees.", expires="2999-01-01", user="wei")
        exported = self.home / "all.jsonl"
        written = self.json_of("export", "--everybody", "--output", str(exported))
        self.assertEqual(written["exported"], 2)
        lines = [json.loads(line) for line in exported.read_text().splitlines()]
        self.assertEqual({line["user_id"] for line in lines}, {"anna", "wei"})
        self.assertEqual(lines[0]["history"][0]["event"], "ADD")

        first = self.json_of("list", "--user", "anna")["results"]
        self.data = self.home / "other"
        self.environment["INFERSCALE_DATA_DIR"] = str(self.data)
        done = self.json_of("import", str(exported), "--no-wait")
        self.assertEqual((done["added"], done["duplicates"]), (2, 0))
        self.assertEqual(self.json_of("list", "--user", "anna")["results"], first)
        again = self.json_of("import", str(exported), "--no-wait")
        self.assertEqual((again["added"], again["duplicates"]), (0, 2))
        mine = self.json_of("import", str(exported), "--no-wait", "--user", "eve")
        self.assertEqual(mine["duplicates"], 2)

    def test_import_reads_the_answer_of_mem0(self):
        answer = {"results": [
            {"id": "mem-1", "memory": "Likes tea", "hash": "h", "metadata": {"a": 1},
             "created_at": "2024-05-01T10:00:00-07:00", "updated_at": None, "user_id": "anna"},
            {"id": "mem-2", "memory": "likes TEA ", "user_id": "anna"},
            {"id": "mem-3", "memory": "Owns a boat"}]}
        done = self.json_of("import", "-", stdin=json.dumps(answer))
        self.assertEqual((done["added"], done["duplicates"], done["pending_encodings"]), (2, 1, 0))
        fact = self.json_of("show", "mem-1")
        self.assertEqual(fact["created_at"], "2024-05-01T17:00:00+00:00")
        self.assertEqual(fact["metadata"], {"a": 1})
        self.assertEqual(fact["user_id"], "anna")
        self.assertEqual(self.texts(), ["Owns a boat"])
        self.assertEqual(len(self.kv_files()), 2)

    def test_export_formats(self):
        self.add("Anna likes tea.")
        output, _ = self.run_cli("export")
        self.assertEqual(json.loads(output)["memory"], "Anna likes tea.")
        self.assertEqual(len(self.json_of("export")["results"]), 1)
        output, _ = self.run_cli("export", "--user", "nobody")
        self.assertEqual(output, "")


class Chat(CliTest):
    def test_one_answer_injects_memories_and_text_mode_does_not(self):
        self.json_of("add", "Anna moved to Lisbon in May.", "Anna has two cats.")
        answer = self.json_of("chat", "Where does Anna live?", "--max-tokens", "4")
        for key in ["answer", "finish", "memories", "prompt_tokens", "injected_tokens",
                    "reused_tokens", "computed_tokens", "ttft_ms", "question_to_first_token_ms",
                    "total_ms", "fallbacks"]:
            self.assertIn(key, answer)
        self.assertEqual(len(answer["memories"]), 2)
        self.assertGreater(answer["injected_tokens"], 0)
        as_text = self.json_of("chat", "Where does Anna live?", "--max-tokens", "4", "--text")
        self.assertEqual(as_text["injected_tokens"], 0)
        self.assertEqual(as_text["prompt_tokens"], answer["prompt_tokens"])
        off = self.json_of("chat", "Where does Anna live?", "--max-tokens", "4", "--off")
        self.assertEqual(off["memories"], [])
        self.assertLess(off["prompt_tokens"], answer["prompt_tokens"])

    def test_text_output_shows_memories_and_tokens(self):
        self.json_of("add", "Anna moved to Lisbon in May.")
        output, _ = self.run_cli("chat", "Where does Anna live?", "--max-tokens", "4")
        for part in ["1 memory", "injected", "computed", "first token after", "Anna moved to Lisbon"]:
            self.assertIn(part, output)

    def test_conversation_keeps_its_turns(self):
        self.json_of("add", "Anna moved to Lisbon in May.")
        output, _ = self.run_cli("chat", "--json", "--max-tokens", "4",
                                 stdin="Where does Anna live?\n\nAnd since when?\n/new\nHello\n")
        first, second, fresh = [json.loads(line) for line in output.splitlines()]
        self.assertGreater(second["prompt_tokens"], first["prompt_tokens"])
        self.assertLess(fresh["prompt_tokens"], second["prompt_tokens"])

    def test_remember_stores_what_was_said(self):
        self.json_of("chat", "My boat is called Petrel.", "--remember", "--max-tokens", "2")
        self.json_of("add", "Something else.")
        self.assertIn("My boat is called Petrel.", self.texts())


class Configuration(CliTest):
    def test_file_environment_and_flag(self):
        path = self.home / "options.toml"
        path.write_text('top_k = 3\nextractor_key = "hunter2"\ncodec = "f16"\n')
        options = self.json_of("config", "--config", str(path), "--codec", "int8")["options"]
        self.assertEqual(options["top_k"], {"value": "3", "source": "file"})
        self.assertEqual(options["codec"], {"value": "int8", "source": "flag"})
        self.assertEqual(options["threads"], {"value": "1", "source": "environment"})
        self.assertEqual(options["user"]["source"], "default")
        output, errors = self.run_cli("config", "--config", str(path))
        self.assertNotIn("hunter2", output + errors)
        path.write_text("\ntopk = 3\n")
        self.assertIn("options.toml:2: topk", self.error_of("list", "--config", str(path))["message"])

    def test_the_default_file_is_read(self):
        path = self.home / ".config/inferscale/config.toml"
        path.parent.mkdir(parents=True)
        path.write_text('user = "anna"\n')
        self.assertEqual(self.json_of("status")["user"], "anna")

    def test_markdown_has_every_option(self):
        output, _ = self.run_cli("config", "--markdown")
        for name in self.json_of("config")["options"]:
            self.assertIn(f"`{name}`", output)


class Doctor(CliTest):
    def test_reports_each_check_in_words(self):
        # The status depends on the machine's disk alone.
        report = self.json_of("doctor")
        self.assertEqual(set(report), {"ok", "checks"})
        checks = {check["name"]: check for check in report["checks"]}
        for name in ["cpu", "data_folder", "memory", "embedder", "model", "kv_injection", "encoding",
                     "extraction", "disk"]:
            self.assertIn(name, checks)
            self.assertEqual(set(checks[name]), {"name", "ok", "detail"})
            self.assertTrue(checks[name]["detail"])
        for name in ["model", "kv_injection", "encoding", "embedder"]:
            self.assertTrue(checks[name]["ok"], checks[name])
        # Random weights find no facts, so auto stays verbatim.
        self.assertFalse(checks["extraction"]["ok"])
        self.assertTrue(report["ok"])
        self.assertEqual(self.texts(), [])

    def test_says_what_is_missing(self):
        report = self.json_of("doctor", "--model", str(self.home / "none.gguf"), status=1)
        checks = {check["name"]: check for check in report["checks"]}
        self.assertFalse(report["ok"])
        self.assertFalse(checks["model"]["ok"])
        self.assertIn("make demo", checks["model"]["detail"])

    def test_accuracy_is_measured_and_kept_for_serving(self):
        report = self.json_of("doctor", "--accuracy")
        check = next(check for check in report["checks"] if check["name"] == "accuracy")
        self.assertEqual(set(check),
                         {"name", "ok", "detail", "passed", "bounds", "figures", "reasons"})
        # Random weights: facts change next to nothing, as text and as KV.
        self.assertTrue(check["ok"], check)
        self.assertTrue(check["passed"])
        self.assertEqual([row["k"] for row in check["figures"]], [5, 20])
        for row in check["figures"]:
            self.assertEqual(row["questions"], 24)
            self.assertLessEqual(row["diff_low"], row["diff"])
            self.assertLessEqual(row["diff"], row["diff_high"])
        self.assertEqual(self.texts(), [], "the check left its facts in the user's folder")

        # What serving makes of a verdict: the one kept, with its outcome turned round.
        self.run_cli("add", "The cat is called Pixel.")
        chat = self.json_of("chat", "What is the cat called?", "--max-tokens", "2")
        self.assertGreater(chat["injected_tokens"], 0)
        with contextlib.closing(sqlite3.connect(self.data / "catalog.db")) as catalog:
            with catalog:
                changed = catalog.execute(
                    "UPDATE meta SET value = replace(value, '\"passed\":true', '\"passed\":false')"
                    " WHERE name LIKE 'accuracy.verdict.%'").rowcount
        self.assertEqual(changed, 1)
        output, errors = self.run_cli("chat", "What is the cat called?", "--max-tokens", "2")
        self.assertIn("failed doctor --accuracy", output)
        self.assertIn("served as text", errors)
        chat = self.json_of("chat", "What is the cat called?", "--max-tokens", "2")
        self.assertEqual(chat["injected_tokens"], 0)
        self.assertIn("accuracy_gate", [fallback["reason"] for fallback in chat["fallbacks"]])
        chat = self.json_of("chat", "What is the cat called?", "--max-tokens", "2",
                            "--accuracy-gate", "ignore")
        self.assertGreater(chat["injected_tokens"], 0)


class Judge(CliTest):
    def test_answers_are_judged_twice_and_a_rerun_asks_for_what_is_missing(self):
        sample = {
            "sample_id": "s",
            "conversation": {
                "speaker_a": "Ada", "speaker_b": "Bo",
                "session_1_date_time": "1:00 pm on 1 May, 2023",
                "session_1": [{"speaker": "Ada", "dia_id": "D1:1", "text": "I keep bees."}],
            },
            "observation": {"session_1_observation": {"Ada": [["Ada keeps bees", "D1:1"]]}},
            "qa": [{"question": f"What does Ada keep ({i})?", "answer": "bees", "category": 4}
                   for i in range(3)],
        }
        path = self.home / "locomo.json"
        path.write_text(json.dumps([sample]))
        labels = []

        def complete(messages):
            strict = "Be strict" in messages[0]["content"]
            labels.append(strict)
            return json.dumps({"label": "WRONG" if strict else "CORRECT"})

        server = FakeServer(self, complete)
        url = self.environment["INFERSCALE_EXTRACTOR_URL"]
        self.environment["JUDGE_KEY"] = "secret"
        arguments = ["eval", "locomo", str(path), "--k", "1", "--modes", "text,kv", "--generate",
                     "4", "--out", str(self.home / "out"), "--judge-endpoint", url,
                     "--judge-model", "fair", "--judge-api-key-env", "JUDGE_KEY"]
        rows = self.json_of(*arguments)["rows"]
        self.assertEqual([row["mode"] for row in rows], ["text", "kv"])
        for row in rows:
            self.assertEqual((row["judge"], row["judge_strict"]), (1, 0))
            self.assertEqual(row["judge_p"], 1)
        self.assertIn(True, labels)
        self.assertIn(False, labels)
        judged = [headers for target, headers in server.requests if target.endswith("completions")]
        self.assertEqual({headers["Authorization"] for headers in judged}, {"Bearer secret"})
        asked = len(labels)
        self.json_of(*arguments)
        self.assertEqual(len(labels), asked, "what is judged is not judged again")

        page = (self.home / "out" / "report.html").read_text()
        self.assertIn("<svg", page)
        self.assertNotIn("http", page)
        report = json.loads((self.home / "out" / "report.json").read_text())
        self.assertEqual(report["rows"], rows)
        error = self.error_of(*arguments[:-2], "--judge-api-key-env", "NO_SUCH_VARIABLE")
        self.assertIn("NO_SUCH_VARIABLE", error["message"])


if __name__ == "__main__":
    cli_support.main()

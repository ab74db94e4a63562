#!/usr/bin/env python3
"""Two processes on one folder, Ctrl-C and kill -9: whatever was acknowledged is there."""

import json
import re
import signal
import subprocess
import unittest

import cli_support
from cli_support import CliTest, FakeServer, write_turns

STORED = re.compile(rb"stored (\d+) of (\d+) turns")


class Processes(CliTest):
    def hold(self):
        """A conversation that has the data folder until its input ends."""
        holder = self.start("chat", "--json", "--max-tokens", "2", stdin=subprocess.PIPE)
        self.addCleanup(holder.communicate)
        holder.stdin.write(b"hello\n")
        holder.stdin.flush()
        json.loads(holder.stdout.readline())
        return holder

    def test_a_second_process_is_told_who_has_the_folder(self):
        holder = self.hold()
        for arguments in [["list"], ["add", "text", "--no-wait"], ["status"]]:
            error = self.error_of(*arguments)
            self.assertEqual(error["code"], "unavailable")
            self.assertIn(str(holder.pid), error["message"])
        holder.stdin.close()
        holder.stdin = None
        self.assertEqual(holder.wait(timeout=60), 0)
        self.assertEqual(self.texts(), [])

    def test_ctrl_c_ends_a_waiting_conversation(self):
        holder = self.hold()
        holder.send_signal(signal.SIGINT)
        self.assertEqual(holder.wait(timeout=60), 0)


    def test_ctrl_c_cancels_a_long_answer(self):
        process = self.start("chat", "hello", "--max-tokens", "1900", bufsize=0)
        self.addCleanup(process.communicate)
        said = process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        said += process.stdout.read()
        self.assertEqual(process.wait(timeout=60), 1)
        self.assertIn(b"cancelled", said)
        self.assertIn(b"computed", said)


class Interrupted(CliTest):
    TURNS = 1500

    def setUp(self):
        super().setUp()
        self.source = self.home / "turns.txt"
        self.expected = write_turns(self.source, self.TURNS)

    def ingest_until(self, turns, *options):
        """An ingest that has acknowledged at least `turns`; and what it has said so far."""
        # Unbuffered: what has been read must be all that has been said.
        process = self.start("add", "--file", str(self.source), *options, bufsize=0)
        acknowledged = -1
        said = b""
        while acknowledged < turns:
            line = process.stderr.readline()
            self.assertTrue(line, said)
            said += line
            if match := STORED.search(line):
                acknowledged = int(match.group(1))
        return process, acknowledged, said

    def test_ctrl_c_keeps_what_is_stored_and_says_how_to_go_on(self):
        process, _, said = self.ingest_until(1, "--no-wait")
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        said += errors
        self.assertEqual(process.returncode, 1, said)
        skip = re.search(rb"--skip (\d+)", said)
        self.assertIsNotNone(skip, said)
        stored = int(skip.group(1))
        self.assertEqual(sorted(self.texts()), sorted(self.expected[:stored]))
        rest = self.json_of("add", "--file", str(self.source), "--skip", str(stored), "--no-wait")
        self.assertEqual((rest["added"], rest["duplicates"]), (self.TURNS - stored, 0))
        self.assertEqual(sorted(self.texts()), sorted(self.expected))

    def test_kill_keeps_everything_acknowledged_and_encoding_goes_on(self):
        process, acknowledged, _ = self.ingest_until(1)
        process.kill()
        process.communicate()
        stored = self.texts()
        self.assertGreaterEqual(len(stored), acknowledged)
        self.assertEqual(sorted(stored), sorted(self.expected[:len(stored)]))
        status = self.json_of("status")
        self.assertEqual(status["facts"], len(stored))
        done = self.json_of("add", "One more.")
        self.assertEqual(done["pending_encodings"], 0)
        self.assertEqual(len(self.kv_files()), len(stored) + 1)
        answer = self.json_of("chat", "Where did I buy the vase?", "--max-tokens", "2",
                              "--top-k", "5")
        self.assertGreater(answer["injected_tokens"], 0)
        self.assertEqual(answer["fallbacks"], [])

    def test_killed_again_and_again_at_any_point(self):
        FakeServer(self)
        count = 160
        self.source.write_text("".join(f"Anna: {text}\n" for text in self.expected[:count]))
        before = 0
        for delay in [0.02, 0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 0.9, 1.2]:
            process = self.start("add", "--file", str(self.source))
            try:
                process.wait(timeout=delay)
            except subprocess.TimeoutExpired:
                process.kill()
            process.communicate()
            stored = self.texts()
            self.assertEqual(sorted(stored), sorted(self.expected[:len(stored)]))
            self.assertGreaterEqual(len(stored), before)
            before = len(stored)
        done = self.json_of("add", "--file", str(self.source))
        self.assertEqual(done["added"] + done["duplicates"], count)
        self.assertEqual(done["pending_encodings"], 0)
        self.assertEqual(sorted(self.texts()), sorted(self.expected[:count]))
        self.assertEqual(len(self.kv_files()), count)

    def test_kill_in_the_middle_of_encoding(self):
        # One batch: stored whole before any of it is encoded.
        count = 32
        self.source.write_text("".join(f"Anna: {text}\n" for text in self.expected[:count]))
        process = self.start("add", "--file", str(self.source))
        self.wait_for(lambda: len(self.kv_files()) > 5, process)
        process.kill()
        process.communicate()
        self.assertEqual(len(self.texts()), count)
        leftovers = [path for path in (self.data / "kv").rglob("*")
                     if path.is_file() and path.suffix != ".kvb"]
        done = self.json_of("add", "One more.")
        self.assertEqual(done["pending_encodings"], 0)
        self.assertEqual(len(self.kv_files()), count + 1)
        self.assertFalse([path for path in leftovers if path.exists()])

    def test_ctrl_c_while_encoding_ends_the_waiting_alone(self):
        self.source.write_text("\n".join(self.expected[:300]) + "\n")
        process = self.start("add", "--file", str(self.source))
        self.wait_for(lambda: len(self.kv_files()) > 0, process)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        self.assertIn(process.returncode, (0, 1), errors)
        self.assertGreaterEqual(len(self.texts()), 1)


if __name__ == "__main__":
    cli_support.main()

#!/usr/bin/env python3
"""Backup and restore: whole or nothing, and what was erased since stays erased."""

import json
import os
import random
import shutil
import signal
import stat
import tarfile
import time

import cli_support
from cli_support import CliTest, FakeServer
from serve_support import Server


class Backup(CliTest):
    def setUp(self):
        super().setUp()
        FakeServer(self)  # vectors without a model: commands start at once
        self.file = self.home / "memories.tar"

    def back_up(self, *arguments):
        return self.json_of("backup", str(self.file), *arguments)

    def restore(self, *arguments):
        return self.json_of("restore", str(self.file), *arguments)

    def move_away(self):
        """An empty data folder from here on; the old one's place."""
        old = self.home / "old"
        self.data.rename(old)
        return old

    def holds(self, folder, text):
        return [path for path in folder.rglob("*")
                if path.is_file() and text.encode() in path.read_bytes()]

    def test_a_backup_brings_everything_back(self):
        self.add("Anna keeps alpacas", "Grüße aus 東京 🌊", user="anna")
        self.add("Ben bakes", user="ben")
        key = self.json_of("keys", "create", "--label", "kept")
        exported = self.run_cli("export", "--everybody")[0]
        report = self.back_up()
        self.assertEqual(report["bytes"], self.file.stat().st_size)
        self.assertEqual(stat.S_IMODE(self.file.stat().st_mode), 0o600)
        with tarfile.open(self.file) as archive:
            self.assertEqual(archive.getnames(), ["backup.json", "catalog.db", "SHA256"])
            self.assertEqual(json.load(archive.extractfile("backup.json"))["format"], 1)
        self.move_away()
        self.assertEqual(self.restore()["erasures_reapplied"], 0)
        self.assertEqual(self.run_cli("export", "--everybody")[0], exported)
        self.assertEqual(self.json_of("keys", "list")["keys"][0]["id"], key["id"])
        self.assertEqual(sorted(path.name for path in self.data.iterdir()),
                         [".lock", "catalog.db"])

    def test_what_was_erased_since_stays_erased(self):
        self.add("Anna keeps alpacas", user="anna")
        deleted = self.add("Anna owes Ben money", user="anna")[0]["id"]
        forgotten = self.add("Anna's code is quetzal", user="anna")[0]["id"]
        self.add("Ben bakes bread", user="ben")
        self.add("Carla carves cork", user="carla")
        self.back_up()
        self.run_cli("delete", deleted)
        self.run_cli("forget", forgotten)
        self.run_cli("forget", "--all", "--yes", "--user", "carla")
        self.add("Ben boxes now", user="ben")
        log = self.home / "erasures.log"
        shutil.copy(self.data / "erasures.log", log)
        for place in ("over the folder", "beside a log that was kept", "into what is left"):
            with self.subTest(place):
                if place == "over the folder":
                    report = self.restore("--replace")
                else:
                    shutil.rmtree(self.data)
                    if place == "into what is left":
                        self.data.mkdir(mode=0o700)
                        shutil.copy(log, self.data / "erasures.log")
                        report = self.restore()
                    else:
                        report = self.restore("--erasures", str(log))
                self.assertEqual(report["erasures_reapplied"], 3)
                self.assertEqual(self.texts("anna"), ["Anna keeps alpacas"])
                self.assertEqual(self.texts("ben"), ["Ben bakes bread"])
                self.assertEqual(self.texts("carla"), [])
                for text in ("quetzal", "carves cork"):
                    self.assertEqual(self.holds(self.data, text), [])
                # A second restore of the same backup must not bring them back either.
                self.assertEqual(self.restore("--replace")["erasures_reapplied"], 3)
                self.assertEqual(self.texts("carla"), [])
        for word in ("Anna", "carla", "quetzal", deleted, forgotten):
            self.assertNotIn(word, log.read_text())
        self.add("Carla came back", user="carla")
        self.file.unlink()
        self.back_up()
        self.assertEqual(self.restore("--replace")["erasures_reapplied"], 0)
        self.assertEqual(self.texts("carla"), ["Carla came back"])

    def test_kv_comes_back_but_not_of_what_was_erased(self):
        del self.environment["INFERSCALE_EMBEDDER"], self.environment["INFERSCALE_EMBEDDER_MODEL"]
        kept, gone = self.json_of("add", "Dora drums", "Dora dives")["facts"]
        blocks = len(self.kv_files())
        self.assertGreaterEqual(blocks, 2)
        self.assertEqual(self.back_up("--with-kv")["kv_blocks"], blocks)
        self.run_cli("forget", gone["id"])
        left = len(self.kv_files())
        self.assertLess(left, blocks)
        self.restore("--replace")
        self.assertLessEqual(len(self.kv_files()), left)
        self.assertGreaterEqual(len(self.kv_files()), 1)
        self.assertEqual([fact["id"] for fact in self.json_of("list")["results"]], [kept["id"]])

    def test_a_folder_in_use_or_not_empty_and_a_file_that_is_there_are_refused(self):
        self.add("Emil eats eels")
        self.back_up()
        self.assertEqual(self.error_of("backup", str(self.file))["code"], "already_exists")
        self.assertIn("--replace", self.error_of("restore", str(self.file))["message"])
        inside = self.error_of("backup", str(self.data / "memories.tar"))
        self.assertEqual(inside["code"], "invalid_argument")
        with self.subTest("in use"):
            server = Server(self)
            self.addCleanup(server.stop, signal.SIGKILL)
            other = str(self.home / "other.tar")
            self.assertEqual(self.error_of("backup", other)["code"], "unavailable")
            refused = self.error_of("restore", str(self.file), "--replace")
            self.assertEqual(refused["code"], "unavailable")
            server.stop()
        self.assertEqual(self.texts(), ["Emil eats eels"])
        foreign = self.home / "foreign"
        foreign.mkdir()
        (foreign / "thesis.txt").write_text("years of work")
        for more in ([], ["--replace"]):
            message = self.error_of("restore", str(self.file), "--data-dir", str(foreign),
                                    *more)["message"]
            self.assertIn("thesis.txt", message)
        self.assertEqual((foreign / "thesis.txt").read_text(), "years of work")
        self.assertEqual(self.error_of("backup", str(self.home / "x.tar"), "--data-dir",
                                       str(self.home / "nowhere"))["code"], "not_found")

    def test_a_damaged_backup_is_refused_and_changes_nothing(self):
        self.add("Fritz fishes")
        self.back_up()
        whole = self.file.read_bytes()
        dice = random.Random(5)
        damages = [whole[:size] for size in (0, 1, 511, 512, 5000, len(whole) // 2,
                                             len(whole) - 1536)]
        for _ in range(20):
            at = dice.randrange(len(whole) - 1024)
            damages.append(whole[:at] + bytes([whole[at] ^ (1 << dice.randrange(8))])
                           + whole[at + 1:])
        for damaged in damages:
            self.file.write_bytes(damaged)
            code = self.error_of("restore", str(self.file), "--replace")["code"]
            self.assertIn(code, ("data_loss", "invalid_argument"))
        self.assertEqual(self.texts(), ["Fritz fishes"])

    def test_an_archive_that_leads_out_of_the_folder_is_refused(self):
        self.add("Gerda gardens")
        for name, kind in [("../evil", tarfile.REGTYPE), ("/tmp/evil", tarfile.REGTYPE),
                           ("kv/../../evil.kvb", tarfile.REGTYPE), ("catalog.db", tarfile.SYMTYPE),
                           ("config.toml", tarfile.REGTYPE)]:
            with tarfile.open(self.file, "w", format=tarfile.USTAR_FORMAT) as archive:
                for member, type_ in [("backup.json", tarfile.REGTYPE), (name, kind),
                                      ("SHA256", tarfile.REGTYPE)]:
                    info = tarfile.TarInfo(member)
                    info.type, info.linkname = type_, "/etc/passwd" if type_ == kind else ""
                    archive.addfile(info)
            code = self.error_of("restore", str(self.file), "--replace")["code"]
            self.assertIn(code, ("data_loss", "invalid_argument"), name)
            self.assertFalse((self.home / "evil").exists())
        self.assertEqual(self.texts(), ["Gerda gardens"])

    def kill(self, seconds, *arguments):
        """Runs and kills; whether it was done before."""
        process = self.start(*arguments)
        time.sleep(seconds)
        process.kill()
        process.communicate()
        return process.returncode == 0

    def test_kill_minus_nine(self):
        facts = [json.dumps({"id": f"00000000-0000-4000-8000-{i:012}", "user_id": "hana",
                             "memory": f"Hana has {i} hats " + "x" * 2000}) for i in range(400)]
        memories = self.home / "memories.jsonl"
        memories.write_text("\n".join(facts))
        self.run_cli("import", str(memories), "--no-wait")
        before = self.texts("hana")
        self.assertEqual(len(before), 400)
        start = time.monotonic()
        self.back_up()
        whole = time.monotonic() - start
        backup = self.file.read_bytes()
        dice = random.Random(7)
        cut = 0
        for _ in range(12):
            self.file.unlink(missing_ok=True)
            cut += not self.kill(dice.uniform(0, whole), "backup", str(self.file))
            if self.file.exists():
                self.restore("--data-dir", str(self.home / "check"))
                shutil.rmtree(self.home / "check")
            self.assertEqual(self.texts("hana"), before)
        self.assertGreater(cut, 2, "nothing was cut short")
        self.file.unlink(missing_ok=True)
        self.back_up()
        self.assertEqual(list(self.home.glob("*.partial*")), [])

        self.file.write_bytes(backup)
        erased = self.json_of("list", "--user", "hana")["results"][0]["id"]
        self.run_cli("forget", erased)
        restored = [text for text in before if text in set(self.texts("hana"))]
        self.assertEqual(len(restored), 399)
        self.add("Hana has a hamster", user="hana")
        start = time.monotonic()
        self.restore("--replace", "--data-dir", str(self.home / "timed"))
        whole = time.monotonic() - start
        pristine = self.home / "pristine"
        shutil.copytree(self.data, pristine)
        states = {"old": 0, "restored": 0}
        for _ in range(16):
            shutil.rmtree(self.data)
            shutil.copytree(pristine, self.data)
            self.kill(dice.uniform(0, 1.2 * whole), "restore", str(self.file), "--replace")
            found = self.texts("hana")
            if "Hana has a hamster" in found:
                self.assertEqual(len(found), 400)
                states["old"] += 1
            else:
                self.assertEqual(sorted(found), sorted(restored))
                states["restored"] += 1
            self.assertFalse((self.data / ".restore").exists(), "the next command cleans up")
        self.assertGreater(states["old"], 0, states)
        self.restore("--replace")
        self.assertEqual(sorted(self.texts("hana")), sorted(restored))


if __name__ == "__main__":
    cli_support.main()

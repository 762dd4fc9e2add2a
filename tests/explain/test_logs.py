import hashlib
import json
import re
from pathlib import Path

from distcheck.rules import all_rules

LOGS = Path(__file__).parent / "logs"
ENTRIES = json.loads((LOGS / "index.json").read_text())
CLASSES = {"start-up", "network", "GPU", "process killed", "application"}


def test_every_log_says_where_it_is_from_and_what_its_cause_was():
    known = {rule.name for rule in all_rules()}
    for entry in ENTRIES:
        assert all(entry[field].strip() for field in ("id", "source", "software", "cause", "evidence")), entry
        assert re.fullmatch(r"https://\S+", entry["source"])
        assert set(entry["rules"]) <= known, entry
        assert len(set(entry["rules"])) == len(entry["rules"]), entry
        assert ("class" in entry) == (not entry["rules"]), entry
        assert entry.get("class") in CLASSES | {None}, entry


def test_every_log_is_listed_once_and_every_thread_is_used_once():
    assert sorted(path.stem for path in LOGS.glob("*.log")) == sorted(entry["id"] for entry in ENTRIES)
    assert len({entry["source"] for entry in ENTRIES}) == len(ENTRIES)


def test_the_address_decides_the_part_of_a_log_of_the_first_collection_and_only_the_newest_collection_is_fresh():
    for entry in ENTRIES:
        odd = hashlib.sha256(entry["source"].encode()).digest()[-1] % 2
        first = "held out" if odd else "build"
        assert entry["split"] == {None: first, "later": "build", "second": "build", "third": "fresh"}[entry.get("added")]


def test_all_parts_are_large_enough_to_measure():
    parts = [entry["split"] for entry in ENTRIES]
    assert min(parts.count(part) for part in ("build", "held out", "fresh")) >= 75


def test_every_log_is_short_and_holds_no_secret_and_no_mail_address():
    for path in LOGS.glob("*.log"):
        text = path.read_text()
        assert 1 <= len(text.strip().splitlines()) <= 45, path
        assert not re.search(r"[\w.+-]+@[\w-]+\.[a-z]{2,}", text, re.IGNORECASE), path
        secret = re.search(r"(?i)\b(hf_|ghp_|sk-|AKIA)\w{12,}|(password|token|secret|api_key)\s*[=:]\s*\S{6,}", text)
        assert not secret, path

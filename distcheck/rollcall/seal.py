"""Sealed frames: without the job's DISTCHECK_TOKEN no process can send or change one.

Follower and leader each make a new nonce. Two keys, one per direction, are derived from the token and the first two
frames, which carry the nonces. Every later frame ends in an HMAC over its number, its header and its body. A frame that
is altered, repeated, dropped, reordered or reflected fails the check. Frames are authenticated, not encrypted.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
from functools import cache

from distcheck.rollcall.wire import HEADER, MAGIC, ProtocolError

TAG_BYTES = 16
_FRESH_BYTES = 16
KNOCK_BYTES = _FRESH_BYTES + TAG_BYTES
_MADE = re.compile(r"distcheck-[0-9a-f]{32}")
_STRETCH = 100_000
"""Rounds of PBKDF2, about 0.05 s per guess: an eavesdropper can try tokens offline."""
_SALT = b"distcheck roll call 2"


def make_token() -> str:
    """Return a random token; its form shows that it needs no key stretching."""
    return f"distcheck-{os.urandom(16).hex()}"


@cache
def secret_of(token: str) -> bytes:
    """Return the secret derived from a token."""
    raw = os.fsencode(token)
    if _MADE.fullmatch(token):
        return hmac.digest(_SALT, raw, "sha256")
    return hashlib.pbkdf2_hmac("sha256", raw, _SALT, _STRETCH)


def name_of(token: str) -> str:
    """Return a unique name for the job that does not reveal the secret."""
    return hmac.digest(secret_of(token), b"name", "sha256").hex()


class Seal:
    """The seal of one direction of a connection."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._number = 0

    def close(self, frame: bytes) -> bytes:
        """Return the next frame with its seal."""
        body = frame[HEADER.size :]
        head = HEADER.pack(MAGIC, len(body) + TAG_BYTES)
        return head + body + self._tag(head + body)

    def open(self, body: bytes) -> bytes:
        """Return the body of the next received frame, without its seal.

        Raises:
            ProtocolError: the seal is invalid.
        """
        head = HEADER.pack(MAGIC, len(body))
        if not hmac.compare_digest(body[-TAG_BYTES:], self._tag(head + body[:-TAG_BYTES])):
            raise ProtocolError("a frame with an invalid seal: it is from another job, or was altered in transit")
        return body[:-TAG_BYTES]

    def _tag(self, frame: bytes) -> bytes:
        numbered = self._number.to_bytes(8, "big") + frame
        self._number += 1
        return hmac.digest(self._key, numbered, "sha256")[:TAG_BYTES]


def seals(secret: bytes, hello: bytes, challenge: bytes) -> tuple[Seal, Seal]:
    """Return the follower's and the leader's seal, from the bodies of the first two frames."""
    spoken = len(hello).to_bytes(8, "big") + hello + challenge
    key = hmac.digest(secret, spoken, "sha256")
    return Seal(hmac.digest(key, b"follower", "sha256")), Seal(hmac.digest(key, b"leader", "sha256"))


def knock(secret: bytes, nonce: str) -> bytes:
    """Return a peer's first message in a round: random bytes and their tag."""
    fresh = os.urandom(_FRESH_BYTES)
    return fresh + _door_tag(secret, nonce, b"knock", fresh)


def is_knock(secret: bytes, nonce: str, said: bytes) -> bool:
    """Whether a peer of this round sent it."""
    return hmac.compare_digest(said[_FRESH_BYTES:], _door_tag(secret, nonce, b"knock", said[:_FRESH_BYTES]))


def answer(secret: bytes, nonce: str, uid: str, said: bytes) -> bytes:
    """Return the answer of the endpoint of `uid` to a peer's first message."""
    return f"{_door_tag(secret, nonce, b'door', said + uid.encode()).hex()} {uid}\n".encode()


def _door_tag(secret: bytes, nonce: str, who: bytes, said: bytes) -> bytes:
    key = hmac.digest(secret, b"round " + nonce.encode(), "sha256")
    return hmac.digest(key, who + b" " + said, "sha256")[:TAG_BYTES]

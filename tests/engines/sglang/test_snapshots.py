"""Following the generations of an index."""

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from agentspec.engines.sglang.snapshots import POLL_SECONDS, SnapshotFollower
from tests.index.making import IDENTITY, contents, document, publish

STORE = "repo-0123456789abcdef/0123456789abcdef"


@pytest.fixture
def follower(tmp_path: Path) -> Iterator[SnapshotFollower]:
    following = SnapshotFollower(tmp_path, IDENTITY.fingerprint)
    yield following
    following.stop()


def wait_for(follower: SnapshotFollower, generation: int) -> None:
    deadline = time.monotonic() + 40 * POLL_SECONDS
    while time.monotonic() < deadline:
        snapshot, _ = follower.snapshot(STORE)
        if snapshot is not None and snapshot.generation == generation:
            return
        time.sleep(0.01)
    pytest.fail(f"generation {generation} was not noticed")


def test_a_new_generation_replaces_the_old_one_for_new_requests_only(
    follower: SnapshotFollower, tmp_path: Path
) -> None:
    publish(tmp_path / STORE, {"a": document([1, 2, 3])})
    old, warnings = follower.snapshot(STORE)
    assert old is not None
    assert warnings == ()
    publish(tmp_path / STORE, {"b": document([4, 5])})
    wait_for(follower, old.generation + 1)
    new, _ = follower.snapshot(STORE)
    assert new is not None
    assert contents(new) == {"b": [4, 5]}
    assert contents(old) == {"a": [1, 2, 3]}, "a request keeps the generation that it began with"


def test_looking_up_never_waits_for_a_disk(follower: SnapshotFollower, tmp_path: Path) -> None:
    publish(tmp_path / STORE, {"a": document([1])})
    follower.snapshot(STORE)
    taken = []
    for number in range(3):
        publish(tmp_path / STORE, {"a": document([number, number])})
        for _ in range(300):
            began = time.perf_counter()
            follower.snapshot(STORE)
            taken.append(time.perf_counter() - began)
    assert np.percentile(taken, 99) < 1e-3


def test_an_older_generation_than_the_caller_knows_draws_a_warning(follower: SnapshotFollower, tmp_path: Path) -> None:
    publish(tmp_path / STORE, {"a": document([1])})
    snapshot, warnings = follower.snapshot(STORE, 9)
    assert snapshot is not None
    assert warnings == (f"drafting from generation {snapshot.generation} of the index, not 9",)


@pytest.mark.parametrize("store", [STORE, "../x/0123456789abcdef"])
def test_what_is_not_there_is_not_used(follower: SnapshotFollower, store: str) -> None:
    snapshot, warnings = follower.snapshot(store)
    assert snapshot is None
    assert "index is not used" in warnings[0]


def test_nothing_outside_the_index_directory_is_opened(follower: SnapshotFollower, tmp_path: Path) -> None:
    outside = tmp_path.parent / "outside-0123456789abcdef" / "0123456789abcdef"
    publish(outside, {"a": document([1])})
    (tmp_path / "link").symlink_to(outside.parent)
    snapshot, warnings = follower.snapshot("link/0123456789abcdef")
    assert snapshot is None
    assert "leads out of the index directory" in warnings[0]


def test_another_tokenizers_index_is_not_used(tmp_path: Path) -> None:
    publish(tmp_path / STORE, {"a": document([1])})
    for fingerprint in ("f" * 32, None):
        following = SnapshotFollower(tmp_path, fingerprint)
        snapshot, warnings = following.snapshot(STORE)
        following.stop()
        assert snapshot is None
        assert "tokenizer" in warnings[0]


def test_damage_keeps_the_old_generation(follower: SnapshotFollower, tmp_path: Path) -> None:
    publish(tmp_path / STORE, {"a": document([1, 2])})
    old, _ = follower.snapshot(STORE)
    assert old is not None
    for file in (tmp_path / STORE).iterdir():
        file.unlink()
    time.sleep(3 * POLL_SECONDS)
    again, _ = follower.snapshot(STORE)
    assert again is old
    assert contents(again) == {"a": [1, 2]}

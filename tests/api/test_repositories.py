"""`/v1/repositories`: progress, failures, and who may see and reach what."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import httpx
import pytest

from agentspec.errors import IndexStoreError, NotFoundError
from tests.api.scripted_indexer import FILES
from tests.api.test_errors import CHAT, HELLO, assert_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.api.conftest import LiveServer

REPOSITORIES = "/v1/repositories"


@pytest.fixture
def fresh(serve: Callable[..., LiveServer]) -> LiveServer:
    return serve()


@pytest.fixture
def client(fresh: LiveServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=fresh.url) as client:
        yield client


@pytest.fixture
def repository(allowed_root: Path) -> Path:
    path = allowed_root / "project"
    path.mkdir()
    return path


def register(client: httpx.Client, path: object, **headers: str) -> httpx.Response:
    return client.post(REPOSITORIES, json={"path": str(path)}, headers=headers)


def wait_for_state(client: httpx.Client, repository_id: str, state: str) -> dict[str, object]:
    deadline = time.monotonic() + 5
    while (body := client.get(f"{REPOSITORIES}/{repository_id}").json())["state"] != state:
        assert time.monotonic() < deadline, f"still {body['state']}"
        time.sleep(0.005)
    return body


def test_the_life_of_a_repository(client: httpx.Client, fresh: LiveServer, repository: Path) -> None:
    fresh.indexer.go.clear()
    response = register(client, repository)
    assert response.status_code == 202
    registered = response.json()
    assert registered["path"] == str(repository)
    assert registered["state"] in ("queued", "indexing")
    assert wait_for_state(client, registered["id"], "indexing")["progress"]["files_total"] in (0, FILES)
    fresh.indexer.go.set()
    ready = wait_for_state(client, registered["id"], "ready")
    assert ready["progress"] == {"files_done": FILES, "files_total": FILES}
    assert client.get(REPOSITORIES).json()["data"] == [ready]
    assert client.delete(f"{REPOSITORIES}/{registered['id']}").json()["deleted"] is True
    assert client.get(REPOSITORIES).json()["data"] == []
    assert_error(client.get(f"{REPOSITORIES}/{registered['id']}"), 404, "not_found")
    assert_error(client.delete(f"{REPOSITORIES}/{registered['id']}"), 404, "not_found")


def test_registering_again_refreshes(client: httpx.Client, fresh: LiveServer, repository: Path) -> None:
    first = register(client, repository).json()
    wait_for_state(client, first["id"], "ready")
    second = register(client, f"{repository}/").json()
    assert second["id"] == first["id"]
    wait_for_state(client, first["id"], "ready")
    assert fresh.indexer.built == [repository, repository]


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (IndexStoreError("no space left on device"), "no space left on device"),
        (RuntimeError("secret at /srv"), "the index build failed; the server's log has the cause"),
    ],
)
def test_failed_builds_say_why_and_may_be_tried_again(
    client: httpx.Client, fresh: LiveServer, repository: Path, error: Exception, message: str
) -> None:
    fresh.indexer.error = error
    registered = register(client, repository).json()
    assert wait_for_state(client, registered["id"], "failed")["error"] == message
    fresh.indexer.error = None
    register(client, repository)
    assert wait_for_state(client, registered["id"], "ready")["error"] is None


def test_removing_a_repository_stops_its_build(client: httpx.Client, fresh: LiveServer, repository: Path) -> None:
    fresh.indexer.go.clear()
    registered = register(client, repository).json()
    wait_for_state(client, registered["id"], "indexing")
    client.delete(f"{REPOSITORIES}/{registered['id']}")
    fresh.indexer.go.set()
    again = register(client, repository).json()
    assert again["id"] != registered["id"]
    wait_for_state(client, again["id"], "ready")
    assert fresh.indexer.built == [repository], "the first build did not run to its end"


@pytest.mark.parametrize("by", ["id", "path", "link"])
def test_requests_name_repositories_by_id_or_path(
    client: httpx.Client, fresh: LiveServer, repository: Path, by: str
) -> None:
    registered = register(client, repository).json()
    wait_for_state(client, registered["id"], "ready")
    (repository.parent / "link").symlink_to(repository)
    names = {"id": registered["id"], "path": registered["path"], "link": f"{repository.parent}/link/"}
    body = {"messages": HELLO, "repository": names[by], "edited_path": "a.py"}
    assert client.post(CHAT, json=body).status_code == 200
    assert fresh.engine.requests[-1].repository == registered["id"]
    assert fresh.registry.snapshot_for(registered["id"], "fp") == (repository, "fp")
    client.delete(f"{REPOSITORIES}/{registered['id']}")
    assert_error(client.post(CHAT, json=body), 404, "not_found", "repository")
    with pytest.raises(NotFoundError):
        fresh.registry.snapshot_for(registered["id"], "fp")


def test_missing_folders(client: httpx.Client, allowed_root: Path) -> None:
    (allowed_root / "file").write_text("x")
    for name in ("absent", "file", "file/below", "x" * 300):
        assert_error(register(client, allowed_root / name), 404, "not_found", "path")


@pytest.mark.parametrize("path", ["project", "./project", "~", "~root", "", "a\0b", "/a\0b", "C:\\", "file:///etc"])
def test_paths_that_are_not_absolute(client: httpx.Client, path: str) -> None:
    assert_error(register(client, path), 400, param="path")


def test_outside_the_allowed_folders(client: httpx.Client, allowed_root: Path, repository: Path) -> None:
    outside = allowed_root.parent / "outside"
    outside.mkdir()
    (allowed_root / "link").symlink_to(outside)
    (allowed_root / "loop").symlink_to(allowed_root / "loop")
    sibling = allowed_root.parent / f"{allowed_root.name}-sibling"
    sibling.mkdir()
    for path in (
        outside,
        outside / "absent",
        "/",
        "/etc",
        "//etc",
        "/proc/self/root",
        allowed_root.parent,
        sibling,
        f"{allowed_root}/../outside",
        f"{repository}/../../outside",
        allowed_root / "link",
        allowed_root / "link" / "below",
        str(allowed_root).swapcase() + "/project",
    ):
        assert_error(register(client, path), 403, "forbidden", "path")
    assert register(client, allowed_root / "loop").status_code in (403, 404)
    assert client.get(REPOSITORIES).json()["data"] == []


def test_links_and_dots_that_stay_inside(client: httpx.Client, allowed_root: Path, repository: Path) -> None:
    (allowed_root / "link").symlink_to(repository)
    ids = {
        register(client, path).json()["id"]
        for path in (repository, allowed_root / "link", f"{allowed_root}/x/../project", f"{repository}/.")
    }
    assert len(ids) == 1
    assert register(client, allowed_root).status_code == 202, "an allowed folder may itself be a repository"


def test_a_folder_swapped_for_a_link_is_not_indexed(
    client: httpx.Client, fresh: LiveServer, allowed_root: Path, repository: Path
) -> None:
    """The folder is checked again when its turn comes."""
    fresh.indexer.go.clear()
    blocker = allowed_root / "blocker"
    blocker.mkdir()
    register(client, blocker)
    registered = register(client, repository).json()
    outside = allowed_root.parent / "outside"
    outside.mkdir()
    repository.rmdir()
    repository.symlink_to(outside)
    fresh.indexer.go.set()
    assert "symbolic link" in wait_for_state(client, registered["id"], "failed")["error"]
    assert fresh.indexer.built == [blocker]


def test_no_folder_is_allowed_by_default(http: httpx.Client, tmp_path: Path) -> None:
    assert_error(register(http, tmp_path), 403, "forbidden")


def test_tenants_do_not_see_each_other(serve: Callable[..., LiveServer], tmp_path: Path, repository: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("alice\nbob\n")
    server = serve(api_key_file=keys)
    alice, bob = ({"authorization": f"Bearer {name}"} for name in ("alice", "bob"))
    with httpx.Client(base_url=server.url) as client:
        owned = register(client, repository, **alice).json()
        for name in (owned["id"], owned["path"]):
            body = {"messages": HELLO, "repository": name}
            assert client.post(CHAT, json=body, headers=alice).status_code == 200
            guessed = client.post(CHAT, json=body, headers=bob)
            unknown = client.post(CHAT, json=body | {"repository": "repo-0"}, headers=bob)
            assert_error(guessed, 404, "not_found")
            assert guessed.json()["error"]["message"].replace(name, "repo-0") == unknown.json()["error"]["message"]
        assert_error(client.get(f"{REPOSITORIES}/{owned['id']}", headers=bob), 404)
        assert_error(client.delete(f"{REPOSITORIES}/{owned['id']}", headers=bob), 404)
        assert client.get(REPOSITORIES, headers=bob).json()["data"] == []
        theirs = register(client, repository, **bob).json()
        assert theirs["id"] != owned["id"]
        assert [r["id"] for r in client.get(REPOSITORIES, headers=alice).json()["data"]] == [owned["id"]]
        assert server.engine.requests[-1].repository == owned["id"]

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentspec.errors import IndexStoreError
from agentspec.index.catalog import Catalog, CatalogRow, encode_catalog

if TYPE_CHECKING:
    from pathlib import Path

PATHS = st.binary(min_size=1, max_size=8).filter(lambda path: b"\0" not in path)
PLACES = st.tuples(st.integers(0, 3), st.integers(0, 5))


@settings(deadline=None)
@given(st.dictionaries(PATHS, PLACES, max_size=20), st.lists(PATHS, max_size=5))
def test_a_catalog_finds_what_it_was_given(
    tmp_path_factory: pytest.TempPathFactory, places: dict[bytes, tuple[int, int]], others: list[bytes]
) -> None:
    file = tmp_path_factory.mktemp("catalog") / "c"
    file.write_bytes(encode_catalog([CatalogRow(path, *place) for path, place in places.items()]))
    catalog = Catalog(file)
    assert len(catalog) == len(places)
    assert catalog.paths() == sorted(places)
    for path in [*places, *others]:
        row = catalog.find(path)
        found = None if row is None else (int(catalog.segments[row]), int(catalog.documents[row]))
        assert found == places.get(path)
    for place in {*places.values(), (9, 9)}:
        expected = [os.fsdecode(path) for path in sorted(places) if places[path] == place]
        assert catalog.paths_of(*place) == expected


def test_damaged_catalogs_are_refused(tmp_path: Path) -> None:
    content = encode_catalog([CatalogRow(b"a/b", 0, 1), CatalogRow(b"c", 1, 0)])
    file = tmp_path / "c"
    for length in range(len(content)):
        file.write_bytes(content[:length])
        with pytest.raises(IndexStoreError):
            Catalog(file)
    for position in range(len(content)):
        broken = bytearray(content)
        broken[position] ^= 0x10
        file.write_bytes(broken)
        with pytest.raises(IndexStoreError):
            Catalog(file)

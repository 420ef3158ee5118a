import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def cache(shared_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Decoded data of all tests in one place, never in the user's."""
    monkeypatch.setenv("METASP_CACHE", str(shared_cache))
    return shared_cache


@pytest.fixture(scope="session")
def data() -> Path:
    """The development data, where there is any."""
    given = os.environ.get("METASP_DATA")
    for folder in ([Path(given)] if given else []) + [ROOT.parent / "shared" / "data"]:
        if (folder / "cifar10").is_dir():
            return folder
    pytest.skip("the development data is not on this machine: name its folder with METASP_DATA")

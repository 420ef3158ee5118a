"""A browser for the tests of a file, and pages opened in it."""

import pytest

from metasp.reports.explorer import build_page
from metasp.store import RunDir
from tests.reports.browser import Opened, started


@pytest.fixture(scope="module")
def browser():
    with started() as found:
        yield found


@pytest.fixture
def opened(browser, tmp_path):
    """Open a page given as a path or as what `build_page` takes."""
    found = []

    def make(what, *args, **options) -> Opened:
        if isinstance(what, RunDir):
            path = what.path / "explorer.html"
        else:
            path = tmp_path / "page.html"
            path.write_bytes(build_page(what, *args).content)
        found.append(Opened(browser, path, **options))
        return found[-1]

    yield make
    for each in found:
        each.context.close()

"""The made run whose page is measured is one that the explorer reads."""

from benchmarks.explored import explorer


def test_a_made_run_of_any_size_has_a_page():
    small, large = explorer(100), explorer(400)
    assert small.keys() == large.keys()
    assert large["page, all, MB"] > small["page, all, MB"] > 0

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metasp.metrics import scores

MATRIX = [[0.9, None, None], [0.6, 0.8, None], [0.3, 0.5, 1.0]]
BEFORE = [0.5, 0.1, 0.0]


def test_by_hand():
    got = scores(MATRIX, BEFORE)
    assert pytest.approx((0.9 + 0.8 + 1.0) / 3) == got["A_1"]
    assert got["A_inf"] == pytest.approx((0.3 + 0.5 + 1.0) / 3)
    assert got["A_m"] == pytest.approx((0.9 + 0.7 + 0.6) / 3)
    assert pytest.approx(((0.3 - 0.9) + (0.5 - 0.8)) / 2) == got["BWT"]
    assert pytest.approx((0.4, 0.7, 1.0)) == got["P"]
    assert [list(row) for row in got["S"]] == [[], [pytest.approx(-0.3)],
                                            [pytest.approx(-0.6), pytest.approx(-0.3)]]  # fmt: skip


@given(st.integers(2, 6).flatmap(lambda n: st.lists(
    st.lists(st.floats(0, 1), min_size=n, max_size=n), min_size=n, max_size=n)))  # fmt: skip
def test_backward_transfer_is_the_scaled_gap(matrix):
    tasks = len(matrix)
    got = scores(matrix, [0.0] * tasks)
    assert pytest.approx(tasks / (tasks - 1) * (got["A_inf"] - got["A_1"]), abs=1e-12) == got["BWT"]


def test_one_task_has_no_backward_transfer():
    assert scores([[0.7]], [0.5])["BWT"] is None


def test_a_hole_in_the_matrix_is_refused():
    with pytest.raises(ValueError, match="lacks"):
        scores([[0.7, None], [0.5, None]], [0, 0])


def test_means_go_over_the_tasks_after_which_was_tested():
    got = scores([MATRIX[0], [None] * 3, MATRIX[2]], BEFORE)
    assert pytest.approx((0.9 + 1.0) / 2) == got["A_1"]
    assert pytest.approx((0.3 + 0.5 + 1.0) / 3) == got["A_inf"]
    assert pytest.approx((0.9 + 0.6) / 2) == got["A_m"]
    assert pytest.approx(0.3 - 0.9) == got["BWT"]
    assert got["P"] == [pytest.approx(0.4), None, pytest.approx(1.0)]
    assert got["S"] == [[], [], [pytest.approx(-0.6)]]


def test_a_run_that_was_not_tested_at_its_end_has_no_scores():
    with pytest.raises(ValueError, match="lacks"):
        scores([MATRIX[0], [None] * 3, [None] * 3], BEFORE)

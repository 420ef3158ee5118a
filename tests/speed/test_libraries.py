"""What the comparison with other libraries computes on our side."""

import torch
from benchmarks.libraries import second_order_matrix
from reproduce.hessian import curvature, exact

from metasp.types import CROSS_ENTROPY
from tests.influence.test_core import problem


def test_a_row_of_the_matrix_is_the_influence_on_one_goal_example():
    model, train, goal, _ = problem("mlp", n=12)
    found = curvature(model, CROSS_ENTROPY, train)
    matrix = second_order_matrix(model, train, goal, 0.7, chunk=2)
    each = [
        exact(found, found.gradient((goal[0][i : i + 1], goal[1][i : i + 1])), 0.7)
        for i in range(len(goal[0]))
    ]
    torch.testing.assert_close(matrix, torch.stack(each))

"""What streams are called in tables."""

import pytest

from metasp.reports.labels import stream_name
from metasp.reports.runs import spec_defaults

KEYS = ("label_noise", "label_noise_kind", "imbalance", "label_column", "true_label_column")


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({}, "clean"),
        ({"label_noise": 0.4}, "symmetric noise 0.4"),
        ({"label_column": "person", "true_label_column": "label"}, "labels person"),
        ({"label_column": "fine"}, "labels fine, clean"),
        (
            {"label_column": "person", "true_label_column": "label", "label_noise": 0.2},
            "labels person, symmetric noise 0.2",
        ),
    ],
)
def test_a_stream_of_given_labels_is_not_called_clean(spec, words):
    assert stream_name({**spec_defaults(), **spec}, KEYS) == words


def test_without_noise_a_field_is_told_by_itself():
    assert stream_name({"label_column": "fine"}, ["label_column"]) == "label column fine"

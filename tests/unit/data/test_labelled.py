"""Labels of every common form become class numbers; what is dropped is said, what is no class is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from bigbatch.data.labelled import load_labelled


def write(path: Path, column: str, labels: list[object]) -> Path:
    path.write_text("".join(json.dumps({"text": f"t{i}", column: label}) + "\n" for i, label in enumerate(labels)))
    return path


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ([0, 1, 1], [0, 1, 1]),
        (["0", " 1 ", "1.0"], [0, 1, 1]),
        ([-1, 1], [0, 1]),
        (["neg", "pos", "POS"], [0, 1, 1]),
        (["Negative", "positive"], [0, 1]),
        ([True, False], [1, 0]),
    ],
)
def test_two_classes_of_sentiment(tmp_path: Path, labels: list[object], expected: list[int]) -> None:
    data = load_labelled(write(tmp_path / "d.jsonl", "label", labels))
    assert data.labels is not None and data.labels.dtype == np.int64
    assert data.labels.tolist() == expected
    assert data.classes == ["negative", "positive"]


@pytest.mark.parametrize(
    ("stars", "kept", "expected"),
    [
        ([1, 2, 3, 4, 5], [0, 1, 3, 4], [0, 0, 1, 1]),
        ([5.0, 3.0, 1.0, 3.5, 2.5], [0, 2, 3, 4], [1, 0, 1, 0]),
        ([1, 4, 5, 6, 7, 10], [0, 1, 4, 5], [0, 0, 1, 1]),
        ([1, 5], [0, 1], [0, 1]),
    ],
)
def test_stars_lose_their_middle_and_say_so(
    tmp_path: Path, stars: list[object], kept: list[int], expected: list[int]
) -> None:
    data = load_labelled(write(tmp_path / "d.jsonl", "overall", stars))
    assert data.labels is not None and data.labels.tolist() == expected
    assert data.texts == [f"t{i}" for i in kept] and data.classes == ["negative", "positive"]
    assert data.num_dropped == len(stars) - len(kept)
    said = any(f"{data.num_dropped} rows in the middle dropped" in message for message in data.messages)
    assert said == (data.num_dropped > 0)


def test_numbers_in_a_column_that_is_no_rating_are_classes(tmp_path: Path) -> None:
    data = load_labelled(write(tmp_path / "d.jsonl", "label", [1, 2, 3, 10, 3]))
    assert data.labels is not None and data.labels.tolist() == [0, 1, 2, 3, 2]
    assert data.classes == ["1", "2", "3", "10"] and data.num_dropped == 0
    two = load_labelled(write(tmp_path / "d.jsonl", "rating", [1, 2]))
    assert two.classes == ["1", "2"] and two.num_dropped == 0


def test_several_named_classes(tmp_path: Path) -> None:
    data = load_labelled(write(tmp_path / "d.jsonl", "label", ["joy", "anger", "joy", "sadness"]))
    assert data.labels is not None and data.labels.tolist() == [1, 0, 1, 2]
    assert data.classes == ["anger", "joy", "sadness"]


def test_classes_of_the_training_part_number_another(tmp_path: Path) -> None:
    path = write(tmp_path / "d.jsonl", "label", ["joy", "sadness"])
    data = load_labelled(path, classes=["anger", "joy", "sadness"])
    assert data.labels is not None and data.labels.tolist() == [1, 2] and len(data.classes) == 3
    with pytest.raises(ValueError, match="'sadness' is not among the classes anger, joy"):
        load_labelled(path, classes=["anger", "joy"])
    first_two = load_labelled(write(tmp_path / "d.jsonl", "label", [1, 0]), classes=["0", "1", "2", "3"])
    assert first_two.labels is not None and first_two.labels.tolist() == [1, 0] and len(first_two.classes) == 4
    one = write(tmp_path / "d.jsonl", "label", [1, 1])
    ones = load_labelled(one, classes=["negative", "positive"], allow_unlabelled=True)
    assert ones.labels is not None and ones.labels.tolist() == [1, 1]


def test_rows_without_label_are_left_out_and_counted(tmp_path: Path) -> None:
    path = write(tmp_path / "d.jsonl", "label", [1, None, 0, "", float("nan")])
    data = load_labelled(path)
    assert data.texts == ["t0", "t2"] and data.num_without_label == 3
    assert any("3 rows without a label left out" in message for message in data.messages)
    with pytest.raises(ValueError, match=r"d\.jsonl:2: no label"):
        load_labelled(path, on_bad_row="error")


def test_unlabelled_files(tmp_path: Path) -> None:
    path = tmp_path / "d.txt"
    path.write_text("one\ntwo\n")
    with pytest.raises(ValueError, match=r"no labels: name it with --label-key"):
        load_labelled(path)
    data = load_labelled(path, allow_unlabelled=True)
    assert data.labels is None and data.texts == ["one", "two"] and data.classes == [] and len(data) == 2


def test_one_class_is_refused_unless_allowed(tmp_path: Path) -> None:
    path = write(tmp_path / "d.jsonl", "label", [1, 1])
    with pytest.raises(ValueError, match=r"one class only \(positive\)"):
        load_labelled(path)
    assert len(load_labelled(path, allow_unlabelled=True)) == 2
    with pytest.raises(ValueError, match=r"one class only \(none\)"):
        load_labelled(write(tmp_path / "d.jsonl", "stars", [3, 3]))


def test_numbers_without_end_are_no_classes(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has 300 different values"):
        load_labelled(write(tmp_path / "d.jsonl", "label", [i / 7 for i in range(300)]))


def test_several_files_are_one_data_set(tmp_path: Path) -> None:
    first, second = write(tmp_path / "a.jsonl", "label", [0]), write(tmp_path / "b.jsonl", "label", [1])
    data = load_labelled([first, second])
    assert data.labels is not None and data.labels.tolist() == [0, 1]


def test_real_files(corpora: Path) -> None:
    sst = load_labelled(corpora / "sst" / "test.csv")
    assert sst.labels is not None and np.bincount(sst.labels).tolist() == [912, 909]
    stars = load_labelled(corpora / "amazon" / "musical_instruments_5core_part.jsonl.gz")
    assert stars.num_dropped == 355 and stars.classes == ["negative", "positive"]
    emotions = load_labelled(corpora / "messy" / "tweeteval_emotion_val.csv")
    assert len(emotions.classes) == 4 and len(emotions) == 374
    with pytest.raises(ValueError, match="970 different values"):
        load_labelled(corpora / "messy" / "multilingual_3000.csv", label_key="language")
    unlabelled = load_labelled(corpora / "messy" / "semeval" / "test.csv", text_key="Tweet", allow_unlabelled=True)
    assert unlabelled.labels is None and len(unlabelled) == 3259


def test_three_spellings_of_two_polarities_are_three_classes(tmp_path: Path) -> None:
    data = load_labelled(write(tmp_path / "d.jsonl", "label", [-1, 0, 1, 1]))
    assert data.labels is not None and data.labels.tolist() == [0, 1, 2, 2] and data.classes == ["-1", "0", "1"]


def test_stars_of_a_test_part_are_read_on_the_scale_of_the_training_part(tmp_path: Path) -> None:
    train = load_labelled(write(tmp_path / "train.jsonl", "rating", [1, 4, 7, 10]))
    assert train.stars == 10
    low = write(tmp_path / "low.jsonl", "rating", [1, 2, 3, 4])
    options: dict = {"classes": train.classes, "allow_unlabelled": True}
    known = load_labelled(low, stars=train.stars, **options)
    assert known.labels is not None and known.labels.tolist() == [0, 0, 0, 0] and known.num_dropped == 0
    ones = load_labelled(write(tmp_path / "ones.jsonl", "rating", [1, 1]), stars=5, **options)
    assert ones.labels is not None and ones.labels.tolist() == [0, 0]
    # Alone, the same file shows a scale of five.
    alone = load_labelled(low)
    assert (
        alone.stars == 5 and alone.labels is not None and alone.labels.tolist() == [0, 0, 1] and alone.num_dropped == 1
    )


def test_each_text_keeps_its_row_number(tmp_path: Path) -> None:
    path = tmp_path / "d.csv"
    path.write_text("stars,text\n5,a\n3,b\n1,\n1,c\n")
    data = load_labelled(path)
    assert data.texts == ["a", "c"] and data.rows == [2, 5]


def test_a_label_that_is_infinite_is_a_name(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    path.write_text('{"text": "a", "label": Infinity}\n{"text": "b", "label": 1}\n')
    assert load_labelled(path).classes == ["1", "inf"]


def test_bytes_that_are_not_utf8_are_counted_for_the_user(tmp_path: Path) -> None:
    path = tmp_path / "d.csv"
    path.write_bytes(b"label,text\n0,caf\xe9\n1,good\n")
    assert any("1 bytes that are not UTF-8 kept" in message for message in load_labelled(path).messages)


def test_many_classes_are_fine_where_each_has_its_rows(tmp_path: Path) -> None:
    names = [f"intent {i % 150}" for i in range(150 * 5)]
    assert len(load_labelled(write(tmp_path / "d.jsonl", "label", names)).classes) == 150
    with pytest.raises(ValueError, match="150 different values in 749 rows, too many for classes"):
        load_labelled(write(tmp_path / "d.jsonl", "label", names[:-1]))

import pytest

from conquiet.dashboard import redact_secrets
from conquiet.dashboard.redaction import HiddenValueError, restore


def test_values_of_secret_and_personal_fields_are_masked() -> None:
    payload = {"order": 7, "email": "jane@example.org", "card": {"number": 1}, "items": [{"api_key": "x", "sku": "a"}]}

    shown = redact_secrets("orders", "paid", payload)

    assert shown == {"order": 7, "email": "•••", "card": "•••", "items": [{"api_key": "•••", "sku": "a"}]}


def test_credentials_inside_texts_are_masked() -> None:
    shown = redact_secrets("s", "e", {"note": "connect to amqp://user:hunter2@host"})

    assert "hunter2" not in shown["note"]


def test_deep_nesting_ends_in_a_mask() -> None:
    value: object = "deep"
    for _ in range(50):
        value = {"a": value}

    assert "deep" not in str(redact_secrets("s", "e", value))


def test_an_edit_keeps_what_was_not_shown() -> None:
    original = {"card": "4111", "n": 1, "lines": [{"mail": "a@b", "q": 1}, {"mail": "c@d", "q": 2}], "gone": True}
    shown = redact_secrets("orders", "paid", original)
    hidden_too = {name: value for name, value in shown.items() if name != "gone"}

    edited = {**shown, "n": 2, "lines": [shown["lines"][0], {**shown["lines"][1], "q": 3}], "new": "x"}
    del edited["gone"]

    assert restore(original, shown, edited) == {
        "card": "4111",
        "n": 2,
        "lines": [{"mail": "a@b", "q": 1}, {"mail": "c@d", "q": 3}],
        "new": "x",
    }
    assert restore(original, shown, shown) == original
    assert restore(original, hidden_too, {**hidden_too, "n": 5}) == {**original, "n": 5}
    assert restore(original, shown, {**shown, "card": "5500"})["card"] == "5500"


def test_a_list_with_masked_values_keeps_its_length() -> None:
    original = {"lines": [{"mail": "a@b"}, {"mail": "c@d"}]}
    shown = redact_secrets("orders", "paid", original)

    with pytest.raises(HiddenValueError):
        restore(original, shown, {"lines": shown["lines"][:1]})
    assert restore({"n": [1, 2]}, {"n": [1, 2]}, {"n": [1]}) == {"n": [1]}

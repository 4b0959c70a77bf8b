from conquiet.dashboard import redact_secrets


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

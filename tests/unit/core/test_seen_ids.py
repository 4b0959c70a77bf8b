from conquiet.core.seen_ids import SeenIds


def test_an_entry_is_new_once() -> None:
    seen = SeenIds()

    assert seen.add("orders", "1-1")
    assert not seen.add("orders", "1-1")
    assert seen.add("invoices", "1-1")


def test_the_last_ten_thousand_entries_are_remembered() -> None:
    seen = SeenIds()

    for number in range(25_001):
        seen.add("orders", f"{number}-0")

        assert seen.is_known("orders", f"{max(0, number - 9_999)}-0")


def test_no_more_than_twenty_thousand_entries_are_remembered() -> None:
    seen = SeenIds()

    for number in range(20_001):
        seen.add("orders", f"{number}-0")

    assert not seen.is_known("orders", "0-0")
    assert seen.add("orders", "0-0")

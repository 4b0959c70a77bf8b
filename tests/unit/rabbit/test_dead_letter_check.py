import pytest

from conquiet.errors import RabbitError
from conquiet.rabbit.dead_letter_check import describe_queue


def test_a_management_api_that_is_not_there_is_named_without_its_password(closed_port: int) -> None:
    with pytest.raises(RabbitError) as caught:
        describe_queue(f"http://guest:s3cret@127.0.0.1:{closed_port}", "/", "work")

    assert "s3cret" not in str(caught.value)

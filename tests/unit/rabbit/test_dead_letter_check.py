import pytest

from conquiet.errors import RabbitError
from conquiet.rabbit.dead_letter_check import find_dead_letters
from conquiet.rabbit.settings import RabbitSettings


async def test_a_management_api_that_is_not_there_is_named_without_its_password(closed_port: int) -> None:
    url = f"http://guest:s3cret@127.0.0.1:{closed_port}"
    settings = RabbitSettings(management_url=url, require_dead_letter=True)

    with pytest.raises(RabbitError, match="does not describe queue work: ConnectionRefusedError") as caught:
        await find_dead_letters(settings, "/", "work")

    assert "s3cret" not in str(caught.value)

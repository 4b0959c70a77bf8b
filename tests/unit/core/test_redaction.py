import pytest
from hypothesis import given
from hypothesis import strategies as st

from conquiet.core.redaction import printable, redact_url, scrub_credentials


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://user:hunter2@cache:6379/0", "redis://***@cache:6379/0"),
        ("redis://:hunter2@cache", "redis://***@cache"),
        ("amqps://u:hunter2@[::1]:5671/vhost", "amqps://***@[::1]:5671/vhost"),
        ("mysql+pymysql://root@127.0.0.1:3306/shop?password=hunter2", "mysql+pymysql://***@127.0.0.1:3306/shop"),
        ("redis://cache:6379/0?password=hunter2", "redis://cache:6379/0"),
        ("unix:///run/redis.sock?db=1", "unix:///run/redis.sock"),
        ("redis://u:p@cache:notaport", "<url that cannot be parsed>"),
        ("amqp://user:12/34cret@host/", "amqp://***"),
        ("amqp://user:12?34cret@host/", "amqp://***"),
        ("amqp://user:12#34cret@host/", "amqp://***"),
        ("amqp://user:s3@cr/et@host/", "amqp://***"),
        ("hunter2", "<url without a scheme>"),
    ],
)
def test_a_url_is_shown_without_its_secrets(url: str, shown: str) -> None:
    assert redact_url(url) == shown


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"]), min_size=1))
def test_no_password_is_ever_shown(password: str) -> None:
    canary = f"CANARY{password}CANARY"
    assert "CANARY" not in redact_url(f"redis://u:{canary}@cache:6379/0?x={canary}").upper().replace("***", "")


@given(st.from_regex(r"[0-9]{1,4}[/?#][0-9a-z/?#@]{0,20}CANARY", fullmatch=True))
def test_a_password_that_begins_like_a_port_is_not_shown_either(password: str) -> None:
    shown = redact_url(f"amqp://user:{password}@host/")

    assert "CANARY" not in shown
    assert "user" not in shown


def test_foreign_text_cannot_start_a_line_or_flood_the_log() -> None:
    assert printable("1-1\n2026 ERROR forged\x1b[31m") == "1-1\\n2026 ERROR forged\\x1b[31m"
    assert len(printable("x" * 10_000)) == 121


@pytest.mark.parametrize(
    ("text", "scrubbed"),
    [
        ("cannot reach redis://jane:s3cret@db:6379/0 now", "cannot reach redis://***@db:6379/0 now"),
        ("mysql+pymysql://root:a/b@c@db/shop?x=1", "mysql+pymysql://***@db/shop?x=1"),
        ("'amqps://u:s3cret@mq/%2f' and http://plain/x", "'amqps://***@mq/%2f' and http://plain/x"),
        ("password=s3cret, user=jane", "password=***, user=jane"),
        ("{'db_password': 's3 cret', 'n': 1}", "{'db_password': ***, 'n': 1}"),
        ("api_key: s3cret; next", "api_key: ***; next"),
        ("Authorization: Bearer s3cretS3cret", "Authorization: Bearer ***"),
        ("(1045, \"Access denied for user 'jane'@'db' (using password: YES)\")",) * 2,
        ("no account of jane@example.org",) * 2,
    ],
)
def test_credentials_are_scrubbed_from_text_and_the_rest_is_kept(text: str, scrubbed: str) -> None:
    assert scrub_credentials(text) == scrubbed

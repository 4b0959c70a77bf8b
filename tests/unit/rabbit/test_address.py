"""The options for TLS in the URL of a broker."""

import shutil
import ssl
import subprocess
from pathlib import Path

import pytest

from conquiet.errors import ConfigurationError, RabbitConnectionError
from conquiet.rabbit.address import Address
from conquiet.rabbit.connection import Link
from conquiet.rabbitmq_api import RabbitApi
from conquiet.testing.certificates import make_certificate


@pytest.fixture
def files(tmp_path: Path) -> str:
    """Return options for TLS: a certificate that is its own authority, and its key."""
    made = make_certificate(tmp_path)
    return f"cacertfile={made.certificate}&certfile={made.certificate}&keyfile={made.key}"


def test_a_url_names_the_files_for_tls(files: str) -> None:
    parameters = Address((f"amqps://broker.example.org/%2F?{files}&heartbeat=20",)).parameters(0)

    context = parameters.ssl_options.context
    assert [one["subject"] for one in context.get_ca_certs()] == [((("commonName", "localhost"),),)]  # no other
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert (parameters.heartbeat, parameters.virtual_host) == (20, "/")


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ("cacertfile=/no/such.pem", "cacertfile '/no/such.pem' in the URL of RabbitMQ cannot be used: No such file"),
        ("certfile=/no/such.pem", "certfile '/no/such.pem' in the URL of RabbitMQ cannot be used: No such file"),
        ("keyfile=/no/such.pem", "a keyfile and no certfile"),
        ("cacertfile=", "cacertfile in the URL of RabbitMQ must name one file"),
        ("cacertfile=a&cacertfile=b", "cacertfile in the URL of RabbitMQ must name one file"),
        ("ssl_options={'certfile':'a'}", "ssl_options in an AMQP URL is refused: name the files as amqps://"),
    ],
)
def test_files_for_tls_that_cannot_be_used_are_refused(query: str, sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence) as refused:
        Address((f"amqps://guest:secret@broker.example.org/%2F?{query}",))

    assert "secret" not in str(refused.value)


def test_files_for_tls_never_lead_to_a_plain_connection(files: str) -> None:
    with pytest.raises(ConfigurationError, match="nothing would be encrypted"):
        Address((f"amqp://broker.example.org/%2F?{files}",))
    with pytest.raises(ConfigurationError, match="give one of them"):
        Address((f"amqps://broker.example.org/%2F?{files}",), ssl_context=ssl.create_default_context())
    with pytest.raises(ConfigurationError, match="says http://"):
        RabbitApi(f"http://broker.example.org?{files}")


def test_an_encrypted_key_is_refused_without_a_question_on_the_terminal(tmp_path: Path) -> None:
    made, openssl = make_certificate(tmp_path), shutil.which("openssl")
    assert openssl is not None
    encrypted = tmp_path / "encrypted.key"
    command = [openssl, "ec", "-in", str(made.key), "-aes128", "-passout", "pass:x", "-out", str(encrypted)]
    subprocess.run(command, check=True, capture_output=True)

    with pytest.raises(ConfigurationError, match="the key is encrypted, and needs a password"):
        Address((f"amqps://broker/%2F?certfile={made.certificate}&keyfile={encrypted}",))


async def test_a_file_that_is_missing_at_a_reconnect_is_a_failed_attempt(tmp_path: Path) -> None:
    """A certificate that is being renewed must not end a consumer."""
    made = make_certificate(tmp_path)
    address = Address((f"amqps://127.0.0.1:1/%2F?cacertfile={made.certificate}",))
    made.certificate.unlink()

    with pytest.raises(RabbitConnectionError, match=r"at amqps://127\.0\.0\.1:1/%2F: cacertfile"):
        await Link.open(address)

import gc
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress

import pytest

from conquiet.testing import CloseMode, Direction, FaultProxy, wait_until


class EchoServer:
    """Returns every chunk unchanged and records it."""

    def __init__(self) -> None:
        self.seen = b""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(5)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                channel, _ = self._listener.accept()
                thread = threading.Thread(target=self._echo, args=(channel,))
                self._threads.append(thread)
                thread.start()

    def _echo(self, channel: socket.socket) -> None:
        with channel, suppress(OSError):
            while chunk := channel.recv(65_536):
                self.seen += chunk
                channel.sendall(chunk)


@pytest.fixture
def echo() -> Iterator[EchoServer]:
    with closing(EchoServer()) as server:
        yield server


@pytest.fixture
def proxy(echo: EchoServer) -> Iterator[FaultProxy]:
    with FaultProxy("127.0.0.1", echo.port) as running:
        yield running


@pytest.fixture
def client(proxy: FaultProxy) -> Iterator[socket.socket]:
    with connect(proxy) as channel:
        yield channel


def connect(proxy: FaultProxy) -> socket.socket:
    return socket.create_connection((proxy.host, proxy.port), timeout=5)


def ask(channel: socket.socket, request: bytes) -> bytes:
    channel.sendall(request)
    return channel.recv(65_536)


def test_a_proxy_has_no_url_before_its_start() -> None:
    with pytest.raises(RuntimeError, match="use it as a context manager"):
        FaultProxy("127.0.0.1", 6379).url_for("redis://127.0.0.1:6379")


def test_without_a_fault_bytes_pass_both_ways_and_are_counted(proxy: FaultProxy, client: socket.socket) -> None:
    assert ask(client, b"hello") == b"hello"

    counted = proxy.counters
    assert (counted.connections, counted.open_connections, counted.faults) == (1, 1, 0)
    assert (counted.bytes_to_server, counted.bytes_to_client) == (5, 5)


def test_a_half_closed_client_still_gets_its_answer(client: socket.socket) -> None:
    client.sendall(b"last words")
    client.shutdown(socket.SHUT_WR)

    assert client.recv(100) == b"last words"
    assert client.recv(100) == b""


def test_cut_with_fin_is_an_end_for_the_client(proxy: FaultProxy, client: socket.socket) -> None:
    ask(client, b"x")

    assert proxy.disconnect(CloseMode.FIN) == 1

    assert client.recv(100) == b""
    assert proxy.counters.faults == 1


def test_cut_with_rst_breaks_connections_but_accepts_new_ones(proxy: FaultProxy, client: socket.socket) -> None:
    ask(client, b"x")

    assert proxy.disconnect(CloseMode.RST) == 1

    with pytest.raises(ConnectionResetError):
        client.recv(100)
    with connect(proxy) as second:
        assert ask(second, b"again") == b"again"


def test_refuse_keeps_old_connections_and_accept_reopens_the_port(proxy: FaultProxy, client: socket.socket) -> None:
    ask(client, b"x")
    port = proxy.port

    proxy.refuse()

    with pytest.raises(ConnectionRefusedError):
        connect(proxy)
    assert ask(client, b"still here") == b"still here"
    proxy.accept()
    assert proxy.port == port
    with connect(proxy) as second:
        assert ask(second, b"back") == b"back"


def test_a_connection_accepted_in_the_turn_of_a_refusal_is_served(proxy: FaultProxy) -> None:
    """It was left open and never served: a client without a time limit waited until the end of the test."""
    loop = proxy._loop
    assert loop is not None
    busy, released = threading.Event(), threading.Event()

    def hold() -> None:
        busy.set()
        released.wait(10)

    loop.call_soon_threadsafe(hold)
    assert busy.wait(10)
    refusing = threading.Thread(target=proxy.refuse)
    refusing.start()
    wait_until(lambda: len(loop._ready) > 0)  # type: ignore[attr-defined] # the refusal waits for its turn
    with connect(proxy) as client:
        released.set()
        refusing.join()

        assert ask(client, b"hello") == b"hello"


def test_a_dropped_request_never_reaches_the_server(proxy: FaultProxy, echo: EchoServer, client: socket.socket) -> None:
    proxy.drop_next_request(b"XADD")

    assert ask(client, b"PING") == b"PING"
    assert ask(client, b"XADD orders") == b""

    proxy.wait_for_fault(5)
    assert echo.seen == b"PING"


def test_a_dropped_reply_is_one_whose_request_the_server_has_done(
    proxy: FaultProxy, echo: EchoServer, client: socket.socket
) -> None:
    """This is how a COMMIT succeeds without its client ever knowing."""
    proxy.drop_next_reply(b"COMMIT")

    assert ask(client, b"INSERT") == b"INSERT"
    assert ask(client, b"COMMIT") == b""

    proxy.wait_for_fault(5)
    assert echo.seen == b"INSERTCOMMIT"
    assert proxy.counters.faults == 1


def test_a_fault_without_a_word_takes_the_very_next_request(proxy: FaultProxy, client: socket.socket) -> None:
    proxy.drop_next_reply()

    assert ask(client, b"anything") == b""


def test_a_fault_strikes_once_and_the_next_connection_is_whole(proxy: FaultProxy, client: socket.socket) -> None:
    proxy.drop_next_request(b"A")
    assert ask(client, b"A") == b""

    with connect(proxy) as second:
        assert ask(second, b"A") == b"A"


def test_a_reply_is_cut_in_the_middle(proxy: FaultProxy, client: socket.socket) -> None:
    proxy.cut_reply_after(4)

    assert ask(client, b"0123456789") == b"0123"
    assert client.recv(100) == b""


def test_a_reply_can_be_cut_after_a_certain_request(proxy: FaultProxy, client: socket.socket) -> None:
    proxy.cut_reply_after(1, after_request_matching=b"GET")

    assert ask(client, b"PING") == b"PING"
    assert ask(client, b"GET") == b"G"


def test_a_negative_cut_is_refused(proxy: FaultProxy) -> None:
    with pytest.raises(ValueError, match="n_bytes"):
        proxy.cut_reply_after(-1)


def test_a_stalled_request_reaches_the_server_only_after_resume(
    proxy: FaultProxy, echo: EchoServer, client: socket.socket
) -> None:
    ask(client, b"a")
    proxy.stall(Direction.TO_SERVER)
    client.settimeout(0.1)

    with pytest.raises(TimeoutError):
        ask(client, b"b")
    assert echo.seen == b"a"

    proxy.resume()
    client.settimeout(5)
    assert client.recv(100) == b"b"


def test_a_stalled_reply_is_held_back_although_the_server_has_answered(
    proxy: FaultProxy, echo: EchoServer, client: socket.socket
) -> None:
    proxy.stall(Direction.TO_CLIENT)
    client.sendall(b"b")

    wait_until(lambda: echo.seen == b"b", message="the server's part")
    client.settimeout(0.1)
    with pytest.raises(TimeoutError):
        client.recv(100)

    proxy.resume()
    client.settimeout(5)
    assert client.recv(100) == b"b"


def test_a_reply_can_be_held_back_after_a_certain_request(
    proxy: FaultProxy, echo: EchoServer, client: socket.socket
) -> None:
    proxy.stall_next_reply(after_request_matching=b"SLOW")
    assert ask(client, b"QUICK") == b"QUICK"

    client.sendall(b"SLOW")
    proxy.wait_for_fault()
    wait_until(lambda: echo.seen == b"QUICKSLOW", message="the server's answer")
    client.settimeout(0.1)
    with pytest.raises(TimeoutError):
        client.recv(100)
    proxy.resume()
    client.settimeout(5)

    assert client.recv(100) == b"SLOW"
    assert ask(client, b"SLOW") == b"SLOW"  # once, like every fault


def test_a_fault_armed_during_a_stall_applies_to_the_bytes_it_held(
    proxy: FaultProxy, echo: EchoServer, client: socket.socket
) -> None:
    proxy.stall()
    client.sendall(b"held")
    proxy.drop_next_request(b"held")

    proxy.resume()

    assert client.recv(100) == b""
    assert echo.seen == b""


def test_a_stalled_connection_can_be_cut(proxy: FaultProxy, client: socket.socket) -> None:
    ask(client, b"a")
    proxy.stall()
    client.sendall(b"b")

    proxy.disconnect(CloseMode.FIN)

    assert client.recv(100) == b""


def test_slow_delays_each_way(proxy: FaultProxy, client: socket.socket) -> None:
    ask(client, b"a")
    proxy.slow(0.05)

    begun = time.monotonic()
    ask(client, b"b")

    assert time.monotonic() - begun >= 0.1


def test_a_server_that_is_down_ends_the_clients_connection(closed_port: int) -> None:
    with FaultProxy("127.0.0.1", closed_port) as proxy, connect(proxy) as client, suppress(ConnectionResetError):
        assert client.recv(100) == b""


def test_a_disarmed_fault_does_not_strike(proxy: FaultProxy, client: socket.socket) -> None:
    proxy.drop_next_request()
    proxy.disarm()

    assert ask(client, b"a") == b"a"


def test_url_for_keeps_everything_but_the_address(proxy: FaultProxy) -> None:
    through = proxy.url_for("mysql+pymysql://root:p%40ss@db.example:3306/shop?charset=utf8mb4")

    assert through == f"mysql+pymysql://root:p%40ss@127.0.0.1:{proxy.port}/shop?charset=utf8mb4"
    assert proxy.url_for("redis://db.example/0") == f"redis://127.0.0.1:{proxy.port}/0"


def test_many_clients_at_once_do_not_mix(proxy: FaultProxy) -> None:
    clients = [connect(proxy) for _ in range(20)]
    try:
        for number, channel in enumerate(clients):
            channel.sendall(b"%d" % number)
        assert [channel.recv(100) for channel in clients] == [b"%d" % number for number in range(20)]
    finally:
        for channel in clients:
            channel.close()
    wait_until(lambda: proxy.counters.open_connections == 0, message="all connections closed")


def test_stop_closes_connections_that_arrive_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    left_open: list[str] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: left_open.append(repr(unraisable.exc_value)))

    def dial(proxy: FaultProxy, clients: list[socket.socket]) -> None:
        with suppress(OSError):
            clients.extend(connect(proxy) for _ in range(3))

    with socket.create_server(("127.0.0.1", 0), backlog=100) as server:
        for _ in range(20):
            proxy = FaultProxy("127.0.0.1", server.getsockname()[1]).start()
            clients: list[socket.socket] = []
            dialling = threading.Thread(target=dial, args=(proxy, clients))
            dialling.start()
            proxy.stop()
            dialling.join()
            for client in clients:
                client.close()
    del proxy
    gc.collect()

    assert left_open == []


def test_stop_is_idempotent_and_controls_after_it_are_refused(echo: EchoServer) -> None:
    proxy = FaultProxy("127.0.0.1", echo.port).start()
    proxy.stop()
    proxy.stop()

    with pytest.raises(RuntimeError, match="not running"):
        proxy.disconnect()
    with pytest.raises(RuntimeError, match="once"):
        proxy.start()

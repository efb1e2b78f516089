"""The address of a Ray cluster: what --on means, and one line where no cluster answers, tried on real sockets."""

import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from labelsieve.errors import InputError
from labelsieve.sweep.address import OF_CLIENT_SERVER, OF_HEAD, address_of, refuse_unreachable
from labelsieve.sweep.sweep import sweep
from tests.conftest import LONG_WAIT

grpc = pytest.importorskip("grpc")


@pytest.mark.parametrize(
    ("on", "address"),
    [("ray", None), ("ray:auto", "auto"), ("ray:10.0.0.1:6379", "10.0.0.1:6379"), ("ray://a:10001", "ray://a:10001")],
)
def test_address_of(on, address):
    assert address_of(on) == address


@pytest.mark.parametrize("on", ["", "there", "rays", "ray:", "ray://", "slurm:x"])
def test_unknown_places_are_refused(on, tmp_path):
    with pytest.raises(InputError, match="use here, ray, ray:ADDRESS or ray://HOST:PORT"):
        sweep([], tmp_path, on=on)


@pytest.fixture
def listener():
    """A socket that listens."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        found.listen()
        yield found


@pytest.fixture
def start():
    """Return a function that starts a gRPC server with these methods and returns its address."""
    servers = []

    def start(methods):
        class Handler(grpc.GenericRpcHandler):
            def service(self, call):
                answer = methods.get(call.method)
                return answer and grpc.unary_unary_rpc_method_handler(answer)

        server = grpc.server(ThreadPoolExecutor(2), handlers=[Handler()])
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        servers.append(server)
        return f"127.0.0.1:{port}"

    yield start
    for server in servers:
        server.stop(None)


def answer(request, context):
    return b""


def refuse(request, context):
    context.abort(grpc.StatusCode.UNAUTHENTICATED, "token")


@pytest.mark.parametrize("scheme", ["ray:", "ray://"])
def test_closed_port_is_one_line(scheme, listener):
    port = listener.getsockname()[1]
    listener.close()
    with pytest.raises(
        InputError, match=rf"^no Ray cluster answers at 127\.0\.0\.1:{port} \(Connection refused\); check"
    ):
        refuse_unreachable(f"{scheme}127.0.0.1:{port}")


def test_port_of_another_program_is_one_line(listener):
    place = f"127.0.0.1:{listener.getsockname()[1]}"
    with pytest.raises(InputError, match="another program uses this port"):  # accepts connections and never answers
        refuse_unreachable(f"ray:{place}", limit=0.3)

    def answer_in_http():
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    threading.Thread(target=answer_in_http, daemon=True).start()
    with pytest.raises(InputError, match="another program uses this port"):
        refuse_unreachable(f"ray://{place}", limit=0.3)


@pytest.mark.parametrize("address", ["10.0.0.1", "10.0.0.1:", ":6379", "10.0.0.1:port", "ray://10.0.0.1"])
def test_malformed_address_is_one_line(address, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", address)  # used by --on ray
    with pytest.raises(InputError, match="write HOST:PORT"):
        refuse_unreachable("ray")


@pytest.mark.parametrize("address", ["", "auto", "local"])
def test_clusters_that_ray_finds_itself_are_left_to_ray(address, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", address)
    refuse_unreachable("ray")
    refuse_unreachable("here")


def test_answers_of_ray_are_told_apart(start, monkeypatch):
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    head, client, other = start({OF_HEAD: answer}), start({OF_CLIENT_SERVER: answer}), start({})
    refuse_unreachable(f"ray:{head}")
    refuse_unreachable(f"ray://{client}")
    refuse_unreachable(f"ray:{other}")  # perhaps a later version of Ray, with other methods
    with pytest.raises(InputError, match=f"other way to connect; use --on ray://{client}$"):
        refuse_unreachable(f"ray:{client}")
    with pytest.raises(InputError, match=f"other way to connect; use --on ray:{head}$"):
        refuse_unreachable(f"ray://{head}")
    with_token = start({OF_HEAD: refuse})
    with pytest.raises(InputError, match="requires a token: set RAY_AUTH_MODE=token"):
        refuse_unreachable(f"ray:{with_token}")
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    refuse_unreachable(f"ray:{with_token}")


@pytest.mark.parametrize(
    "command", ["compare --noise pair --rate 0.2", "table small", "figure 2", "embed x --out y.npz"]
)
def test_commands_refuse_an_address_where_nobody_answers(command, listener, tmp_path):
    on = f"ray:127.0.0.1:{listener.getsockname()[1]}"
    listener.close()
    words = [sys.executable, "-m", "labelsieve", *command.split(), "--on", on]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=LONG_WAIT)
    assert done.returncode == 2 and done.stdout == "" and done.stderr.count("\n") == 1
    assert "no Ray cluster answers" in done.stderr and not list(tmp_path.iterdir())

"""The address of a Ray cluster: parse --on, and refuse an address where no cluster answers, without importing Ray.

Ray itself tries for minutes and prints warnings. Here a plain connection and two calls come first, with a time limit.
"""

import os
import socket
from importlib.util import find_spec

from labelsieve.errors import InputError

LIMIT = 8.0  # seconds for the connection, and for the answer to each of two calls
NAMED = ("auto", "local")  # addresses that Ray finds itself
OF_HEAD, OF_CLIENT_SERVER = "/ray.rpc.NodeInfoGcsService/CheckAlive", "/ray.rpc.RayletDriver/ClusterInfo"


def address_of(on: str) -> str | None:
    """Return the address for ray.init; None for the cluster of this machine, or a new one here."""
    kind, _, address = on.partition(":")
    if kind != "ray" or on == "ray:" or address == "//":
        raise InputError(f"unknown --on {on!r}; use here, ray, ray:ADDRESS or ray://HOST:PORT")
    return on if address.startswith("//") else address or None


def refuse_unreachable(on: str, limit: float = LIMIT) -> None:
    """Refuse an unknown place, and an address where no Ray cluster answers."""
    if on == "here":
        return
    address = address_of(on) or os.environ.get("RAY_ADDRESS", "")
    if not address or address in NAMED:
        return
    place = address.removeprefix("ray://")
    host, _, port = place.rpartition(":")
    if not host or not port.isascii() or not port.isdigit():
        raise InputError(f"{address!r} is no address of a Ray cluster; write HOST:PORT, such as ray:10.0.0.1:6379")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=limit).close()
    except (OSError, OverflowError) as error:  # OverflowError: no such port
        raise InputError(_describe(place, getattr(error, "strerror", None) or str(error))) from error
    if reason := _refusal(place, address.startswith("ray://"), limit):
        raise InputError(reason)


def _describe(place: str, reason: str) -> str:
    return f"no Ray cluster answers at {place} ({reason}); check the address, and that `ray start --head` runs there"


def _refusal(place: str, as_client: bool, limit: float) -> str:
    """Return why the program at an address cannot be used, from its answer to one call; empty if nothing is wrong."""
    if find_spec("grpc") is None or os.environ.get("RAY_USE_TLS", "0") == "1":
        return ""  # cannot be known here
    right, other = (OF_CLIENT_SERVER, OF_HEAD) if as_client else (OF_HEAD, OF_CLIENT_SERVER)
    answer = _answer(place, right, limit)
    if answer in ("UNAVAILABLE", "DEADLINE_EXCEEDED"):
        return _describe(place, "another program uses this port")
    if answer == "UNIMPLEMENTED" != _answer(place, other, limit):
        instead = f"ray:{place}" if as_client else f"ray://{place}"
        return f"{place} is a port of Ray for the other way to connect; use --on {instead}"
    if answer == "UNAUTHENTICATED" and os.environ.get("RAY_AUTH_MODE") != "token":
        return f"the Ray cluster at {place} requires a token: set RAY_AUTH_MODE=token (docs/sweeps.md)"
    return ""


def _answer(place: str, method: str, limit: float) -> str:
    """Return the name of the gRPC status with which a method answers an empty request."""
    import grpc

    with grpc.insecure_channel(place, options=[("grpc.enable_http_proxy", 0)]) as channel:
        try:
            channel.unary_unary(method)(b"", timeout=limit, wait_for_ready=True)
        except grpc.RpcError as error:
            return str(error.code().name)
    return "OK"

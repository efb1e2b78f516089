"""Who may talk to the page: the browser of the person who started it, and nothing else."""

import hmac
from collections.abc import Mapping, Sequence
from email.message import Message


class Refused(Exception):
    """A request that is not answered as asked: an HTTP status, a sentence, and what else the page should know."""

    def __init__(self, status: int, message: str, **facts: object) -> None:
        super().__init__(message)
        self.status, self.facts = status, facts


def refuse_strangers(headers: Message, query: Mapping[str, Sequence[str]], port: int, token: str) -> None:
    """A foreign name for this machine (DNS rebinding), or a token that is not the printed one."""
    if headers.get_all("Host") not in ([f"127.0.0.1:{port}"], [f"localhost:{port}"]):
        raise Refused(403, "open the address that labelsieve review has printed: this is another host name")
    told = query.get("token", [])
    if len(told) != 1 or not hmac.compare_digest(told[0].encode(errors="replace"), token.encode()):
        raise Refused(403, "open the address that labelsieve review has printed: its token is missing or another")


def refuse_foreign_writes(headers: Message) -> None:
    """Only the page itself may write, and only JSON."""
    if headers.get_all("Origin") != [f"http://{headers['Host']}"]:
        raise Refused(403, "only the page itself may write")
    if headers.get_content_type() != "application/json":
        raise Refused(415, "a decision is sent as application/json")

"""A site's channel to a coordinator as in one process: the guard's side and the front's, over a gRPC channel that is open."""

from __future__ import annotations

import time
from collections.abc import Callable

import grpc

from veilsum_node.identity import Credentials
from veilsum_node.randomness import SYSTEM_RANDOM, RandomSource
from veilsum_participant.boundary.direct import Direct
from veilsum_participant.front.answering import Front, told
from veilsum_participant.front.channel import GrpcChannel
from veilsum_participant.session.channel import SiteChannel
from veilsum_proto.services import CoordinationStub


class OpenChannel(SiteChannel):
    """Speaks over ``raw``.

    Attributes:
        wire: the front's side.
    """

    def __init__(
        self,
        raw: grpc.Channel,
        credentials: Credentials,
        clock: Callable[[], int] = lambda: int(time.time()),
        random: RandomSource = SYSTEM_RANDOM,
    ) -> None:
        front = Front()
        self.wire = GrpcChannel(raw)
        front.take(raw, self.wire)
        super().__init__(Direct(front.answer, told), credentials, clock, random)

    @property
    def stub(self) -> CoordinationStub:
        """By which the front calls."""
        return self.wire.stub

    @stub.setter
    def stub(self, stub: CoordinationStub) -> None:
        self.wire.stub = stub

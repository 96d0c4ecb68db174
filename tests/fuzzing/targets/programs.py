"""Encoders' files that were damaged by chance.

Not files that were made to harm: whoever makes an encoder is trusted as the author of software is. With a member changed and
its check sum put right, torch's interpreter dies of what it then runs, within seconds of looking for it.
"""

from __future__ import annotations

import hashlib
import io

import torch

from fuzzing.targets.base import Corpus
from veilsum_participant.data.encoders import load_encoder
from veilsum_privacy.study.encoder import Program


class Encoders(Corpus):
    """A file with the hash of the study, whatever is in it."""

    name = "encoders"
    memory = 4 << 30  # a size that was damaged by chance; torch asks for the memory before it finds that nothing follows
    readers = 2

    def __init__(self) -> None:
        super().__init__()
        network = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU()).eval()
        scripted, exported = io.BytesIO(), io.BytesIO()
        torch.jit.save(torch.jit.script(network), scripted)  # type: ignore[no-untyped-call]
        torch.export.save(torch.export.export(network, (torch.zeros(1, 4),)), exported)
        self.seeds = [[scripted.getvalue()], [exported.getvalue()]]

    def keep(self, data: bytes) -> None:
        """Nothing is gone on from: a spoilt file stays one that was damaged by chance."""

    def read(self, reader: int, data: bytes) -> None:
        form = ("torchscript", "exported")[reader]
        declared = Program(format=form, sha256=hashlib.sha256(data).hexdigest(), inputs=(4,), width=3)  # type: ignore[arg-type]
        load_encoder(self.file("encoder.pt", data), declared)

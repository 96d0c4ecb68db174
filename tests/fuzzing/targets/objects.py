"""Objects that are signed, hashed or bound into a mask, broadcasts and certificates: what is taken encodes to what came."""

from __future__ import annotations

import json
import random

import numpy as np

from fuzzing.driver import Unexpected
from fuzzing.mutation import json_value, mutate_json, write_json
from fuzzing.targets.base import Corpus
from support.federation import make_bed, make_data, make_request, schema_of
from support.ledgers import any_receipt
from veilsum_node.canonical import canonical, parse_canonical
from veilsum_node.identity import Label, verify, verify_certificate
from veilsum_privacy.ledger.receipts import SignedReceipt, parse_receipt, sign_receipt, verify_receipt
from veilsum_privacy.securesum.boxes import BoxKey
from veilsum_privacy.securesum.context import Assignment, decode_broadcast, encode_broadcast, parse_assignment
from veilsum_privacy.securesum.roster import Enrolment, enrol, verify_enrolment
from veilsum_privacy.study.study import parse_study, study_digest


class Objects(Corpus):
    """Canonical JSON, studies, assignments, receipts and their signatures, enrolments, certificates, broadcasts."""

    name = "objects"
    readers = 8

    def __init__(self) -> None:
        super().__init__()
        self.bed = make_bed(self.directory, make_data("ab", 3))
        site = self.bed.sites["a"]
        self.study = self.bed.compile(make_request(schema_of(2)))
        whole = self.study.to_bytes()
        self.key = study_digest(whole)
        self.enrolment = enrol(self.key, site.credentials.identity, BoxKey.generate().public, site.credentials.signing_key)
        self.receipt = sign_receipt(any_receipt(self.key, "a"), site.credentials.signing_key)
        assignment = Assignment(1, 1, "statistics", tuple((name, bytes(16)) for name in "ab"), bytes(32), 2_000_000_000)
        arrays = {"mean": np.arange(6.0).reshape(2, 3), "scale": np.ones(2)}
        self.seeds = [
            [assignment.to_bytes()],
            [whole],
            [assignment.to_bytes()],
            [self.receipt.body],
            [self.receipt.body + self.receipt.signature],
            [self.enrolment.body],
            [self.enrolment.certificate, site.credentials.certificate_pem],
            [encode_broadcast(arrays), encode_broadcast({"": np.zeros(0)})],
        ]

    def build(self, rng: random.Random, reader: int) -> bytes | None:
        if reader in (4, 6) or rng.random() < 0.4:
            return None
        seed = rng.choice(self.seeds[reader])
        if reader == 7:
            size = int.from_bytes(seed[:8], "little")
            try:
                header = json.loads(seed[8 : 8 + size])
            except ValueError:
                return None
            text = write_json(mutate_json(rng, header))
            return len(text).to_bytes(8, "little") + text + seed[8 + size :]
        try:
            value = json.loads(seed)
        except ValueError:
            return write_json(json_value(rng))
        return write_json(mutate_json(rng, value))

    def read(self, reader: int, data: bytes) -> None:
        site = self.bed.sites["a"]
        authority, now = site.credentials.authority, site.clock()
        again = data
        match reader:
            case 0:
                again = canonical(parse_canonical(data, what="value"))
            case 1:
                again = parse_study(data).to_bytes()
            case 2:
                again = parse_assignment(data).to_bytes()
            case 3:
                again = parse_receipt(data).to_bytes()
            case 4:
                split = max(0, len(data) - len(self.receipt.signature))
                signed = SignedReceipt(data[:split], data[split:])
                verify_receipt(signed, site.credentials.identity, self.key, bytes(32))
                again = self.receipt.body + self.receipt.signature
            case 5:
                enrolment = Enrolment(self.enrolment.certificate, data, self.enrolment.signature)
                verify_enrolment(enrolment, self.key, authority, now)
                again = self.enrolment.body
            case 6:
                identity = verify_certificate(data, authority, now, None)
                verify(identity.public_key, Label.RECEIPT, self.receipt.body, self.receipt.signature)
                if identity.certificate != self.enrolment.certificate:
                    raise Unexpected("another certificate than the authority's own is taken")
            case _:
                for array in decode_broadcast(data).values():
                    if array.dtype != np.float64 or not np.isfinite(array).all():
                        raise Unexpected("a broadcast holds what none may hold")
        if again != data and reader not in (6, 7):
            raise Unexpected("two inputs have one meaning")

"""Files that parties hand to each other: directories, requests, reports, dictionaries; and expressions in studies."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

from fuzzing.mutation import mutate_json, mutate_text, write_json
from fuzzing.targets.base import Corpus
from support.federation import make_bed, make_data
from veilsum_node.identity import Authority, Role
from veilsum_node.identity.authority import parse_login_request
from veilsum_node.identity.directory import parse_directory
from veilsum_node.identity.releases import sign_directory
from veilsum_node.identity.requests import login_request
from veilsum_participant.drafting.dictionary import draft_dictionary
from veilsum_participant.drafting.vocabulary import draft_vocabulary
from veilsum_privacy.audit.signed import _BODY, _ROW, FORMAT, read_report, sign_report
from veilsum_privacy.tasks.queries.arithmetic import parse_sum
from veilsum_privacy.tasks.queries.cells import NumberDomain
from veilsum_privacy.tasks.queries.conditions import parse_condition

DOMAINS = {"age": NumberDomain(0.0, 100.0), "weight": NumberDomain(1.0, 200.0)}
DICTIONARY = (
    b'Variable / Field Name,Field Type,Field Label,"Choices, Calculations, OR Slider Labels",Text Validation Type,Min,Max\n'
    b'age,text,Age,,integer,0,120\nsex,radio,Sex,"1, f | 2, m",,,\n'
)
VOCABULARY = (
    b"concept_id\tconcept_name\tdomain_id\tvocabulary_id\tconcept_class_id\tstandard_concept\tconcept_code\tvalid_start_date"
    b"\tvalid_end_date\tinvalid_reason\n8507\tMALE\tGender\tGender\tGender\tS\tM\t19700101\t20991231\t\n"
)


class Documents(Corpus):
    """A signed directory, a login's request, an audit's report, a data dictionary, a vocabulary, a condition and a sum."""

    name = "documents"
    readers = 7
    in_json = (0, 2)

    def __init__(self) -> None:
        super().__init__()
        bed = make_bed(self.directory / "bed", make_data("ab", 3))
        authority, site = Authority.load(bed.kit.authority, bed.clock), bed.credentials["a"]
        body = dict.fromkeys(_BODY, "x") | {"format": FORMAT, "rows": [dict.fromkeys(_ROW, 1)]}
        report = sign_report(body, site.signing_key, site.certificate_pem)
        self.ways: list[Callable[[bytes], object]] = [
            lambda data: parse_directory(data, authority.certificate),
            parse_login_request,
            read_report,
            lambda data: draft_dictionary(self.file("dictionary.csv", data)),
            lambda data: draft_vocabulary(self.file("CONCEPT.csv", data), ["Gender"], [8507]),
            lambda data: parse_condition(data.decode("utf-8", "replace"), DOMAINS),
            lambda data: parse_sum(data.decode("utf-8", "replace"), DOMAINS),
        ]
        whole = [
            sign_directory(authority),
            login_request(Role.ANALYST)[1],
            json.dumps(report).encode(),
            DICTIONARY,
            VOCABULARY,
        ]
        whole += [b"age > 50 and not (weight <= 3.5 or age = 7)", b"weight / 2 - 1.5 * log(weight) + 2 * (age > 3)"]
        self.seeds = [[data] for data in whole]
        for reader, data in enumerate(whole):
            self.read(reader, data)

    def build(self, rng: random.Random, reader: int) -> bytes | None:
        if rng.random() < 0.4:
            return None
        data = rng.choice(self.seeds[reader])
        if reader in self.in_json:
            return write_json(mutate_json(rng, json.loads(self.seeds[reader][0])))
        return mutate_text(rng, data.decode("utf-8", "replace")).encode("utf-8", "surrogatepass")

    def read(self, reader: int, data: bytes) -> None:
        self.ways[reader](data)

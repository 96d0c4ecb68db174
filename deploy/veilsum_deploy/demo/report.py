"""Print what the demo found, as tables for people."""

from collections.abc import Mapping
from typing import Any

from veilsum_node.process.console import print_line, print_rows
from veilsum_privacy.dossier.figures import cost, remaining


def print_findings(found: Mapping[str, Any]) -> None:
    """Print all findings of :func:`~veilsum_deploy.demo.findings.findings`."""
    print_line(f"\n{found['data']}\n")
    _print_accuracy(found["accuracy"])
    _print_epsilon(found)
    _print_coordinator(found)
    _print_dropout(found["dropout"])
    directory = found["directory"]
    _print_proofs(found["proofs"], directory)
    print_line(
        f"For a privacy officer: {directory}/dossiers/*.html. With that folder alone anyone can repeat the verification:"
    )
    name, paper = next(iter(found["dossiers"].items()))
    print_line(
        f"  veilsum ledger verify {name}.jsonl --authority authority.pem --against coordinator.jsonl --head {paper['head']}\n"
    )
    print_line(
        f"Results {directory}/results, ledgers {directory}/participants/*/participant.db,"
        f" logs {directory}/coordinator/coordinator.log and {directory}/participants/*/participant.log."
    )
    print_line(f"Done in {found['seconds']} s.")


def print_studies(found: Mapping[str, Any]) -> None:
    """Print the findings of :func:`~veilsum_deploy.demo.studies.run_own_studies`."""
    print_line(f"\n{found['data']}\n")
    rows = []
    for item in found["studies"]:
        score, fault = item.get("accuracy"), item.get("fault")
        rows.append(
            {
                "study": item["study"],
                "method": item["method"],
                "epsilon": "" if item.get("epsilon") is None else cost(item["epsilon"]),
                "rounds": item.get("rounds", ""),
                "disclosure": ", ".join(item.get("disclosure", ())),
                "accuracy": fault or ("" if score is None else f"{100 * score:.1f}%"),
                **{site: f"{100 * value:.1f}%" for site, value in item.get("by_site", {}).items()},
            }
        )
    print_rows(rows, title="Studies; accuracy on held-out records, each by its own site", as_json=False)
    for item in found["studies"]:
        if (away := item.get("interruption")) is not None:
            print_line(
                f"{item['study']}: {away['hospital']} was killed after {away['killed_after']} releases and started again after"
                f" {away['back_after']}; it was part of {away['part_of']} of {away['of']}."
            )
    baselines = ", ".join(f"{name} {100 * value:.1f}%" for name, value in found["baselines"].items())
    if baselines:
        print_line(f"Without privacy, a linear discriminant: {baselines}. One run each: fresh noise makes runs differ.\n")
    print_rows(
        [
            {
                "hospital": name,
                "epsilon spent": cost(item["spent"]),
                "releases": item["releases"],
                "ledger": f"{item['entries']} entries verified",
                "bytes sent": f"{found['bytes_sent'].get(name, 0):,}",
            }
            for name, item in found["epsilon"].items()
        ],
        title=f"Privacy by each hospital's own ledger, delta {found['delta']:g}",
        as_json=False,
    )
    print_line(
        f"The coordinator saw {len(found['releases'])} sums and nothing else of the records. Results are in"
        f" {found['directory']}/results. Done in {found['seconds']} s."
    )


def _print_proofs(proofs: Mapping[str, Any], directory: str) -> None:
    sums, size = (sum(proof[key] for proof in proofs.values()) for key in ("releases", "bytes"))
    print_line(
        f"All {len(proofs)} results are verified: every number follows from {sums} sums that the hospitals signed for"
        f" (proofs of {size:,} bytes). Anyone can repeat it with the federation's certificate alone:"
    )
    name = next(iter(proofs))
    print_line(f"  veilsum study verify {directory}/results/{name} --authority {directory}/dossiers/authority.pem\n")


def _print_accuracy(scores: Mapping[str, Any]) -> None:
    rows = [{"classifier": f"{name} alone, no privacy", "accuracy": score} for name, score in scores["alone"].items()]
    for epsilon, score in scores["federated"].items():
        rows.append({"classifier": f"federated, epsilon {epsilon}", "accuracy": score})
    rows.append({"classifier": "pooled in one place, no privacy", "accuracy": scores["pooled"]})
    for row in rows:
        row["accuracy"] = f"{100 * float(row['accuracy']):.1f}%"
    print_rows(rows, title=f"Accuracy on {scores['held_out']} held-out records", as_json=False)
    print_line("Linear discriminants. Federated figures are of one run each: fresh noise makes runs differ.\n")


def _print_epsilon(found: Mapping[str, Any]) -> None:
    rows = [
        {
            "hospital": name,
            "epsilon spent": cost(item["spent"]),
            "tighter estimate": "" if item["estimate"] is None else cost(item["estimate"]),
            "left": remaining(item["left"]),
            "budget": f"{item['budget']:g}",
            "releases": item["releases"],
            "ledger": f"{item['entries_verified']} entries verified",
            "bytes sent": f"{found['bytes_sent'].get(name, 0):,}",
        }
        for name, item in found["epsilon"].items()
    ]
    print_rows(rows, title=f"Privacy by each hospital's own ledger, delta {found['delta']:g}", as_json=False)
    print_line(f"A contribution of {found['values']} values took {found['bytes_per_value']:g} bytes a value.\n")


def _print_coordinator(found: Mapping[str, Any]) -> None:
    rows = [
        {
            "study": item["study"],
            "epsilon": cost(item["epsilon"]),
            "sum of": ", ".join(item["cohort"]),
            "values": item["values"],
            "noise (standard deviation)": ", ".join(f"{name} {std:.3g}" for name, std in item["noise_std"].items()),
        }
        for item in found["releases"]
    ]
    print_rows(rows, title="All that the coordinator learned of the records: these sums, with noise", as_json=False)
    counts = ", ".join(
        f"{next(iter(item.values()))} {item['count']['value']:.1f} ± {item['count']['noise_error']:.1f}"
        for item in found["classes"]
    )
    print_line(f"Released, for example: {counts} patients over all hospitals.")
    dropout = found["dropout"]
    if dropout and dropout["sent"]:
        print_line(f"What {dropout['sent_by']} sent for its part of such a sum (masked, encrypted): {dropout['sent']}...")
    print_line("")


def _print_dropout(dropout: Mapping[str, Any] | None) -> None:
    if dropout is None:
        print_line("Too few hospitals to lose one: no process was killed.\n")
        return
    print_line(
        f"{dropout['killed']} was killed in the middle of a study ({dropout['killed_while']}). The study went on with"
        f" {', '.join(dropout['cohort'])} in attempt {dropout['attempts']} and {dropout['phase']}:"
        f" accuracy {100 * dropout['accuracy']:.1f}% at epsilon 1. The killed hospital was charged nothing for it.\n"
    )

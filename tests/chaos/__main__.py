"""``python -m chaos --studies 100 --seed 0``: real studies under SIGKILL; status 1 if anything is wrong."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from chaos.judging import Verdict, judge
from chaos.plans import FederationPlan, draw_federation
from chaos.playing import play
from support.postgres import server

CHI_SIGMAS = 6.5


def run(plan: FederationPlan, place: Path, told: list[str], *, postgres: bool = False, keep: bool = False) -> Verdict:
    """Play and judge one federation; its folder stays if anything was wrong."""
    folder = Path(tempfile.mkdtemp(prefix=f"federation-{plan.seed.replace('/', '-')}-", dir=place))
    began = time.monotonic()
    lines: list[str] = []
    verdict = Verdict()
    try:
        verdict = judge(play(folder, plan, lines.append, server().new_database() if postgres else None))
    except Exception as error:  # noqa: BLE001 - the others go on
        notes = "; ".join(["", *getattr(error, "__notes__", [])])
        verdict.faults.append(f"federation {plan.seed}: {type(error).__name__}: {error}{notes}")
    if verdict.faults or keep:
        verdict.faults += [f"the folder is kept: {folder}"] if verdict.faults else []
    else:
        shutil.rmtree(folder)
    budget = "unlimited" if plan.budget is None else f"epsilon {plan.budget:g}"
    spent = ", ".join(f"{name} {account.epsilon:.3f}" for name, account in verdict.accounts.items())
    lines.append(f"federation {plan.seed}: {time.monotonic() - began:.0f} s, budget {budget}, spent {spent}")
    lines += [f"FAULT {fault}" for fault in verdict.faults]
    told.extend(lines)
    return verdict


def main() -> int:
    """Run the studies and print what came of them."""
    parser = argparse.ArgumentParser(prog="python -m chaos", description=__doc__)
    parser.add_argument("--studies", type=int, default=100)
    parser.add_argument("--each", type=int, default=10, help="studies of a federation")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sites", type=int, default=3)
    parser.add_argument("--only", type=int, help="this federation only, by its number")
    parser.add_argument("--lanes", type=int, default=2, help="federations at a time")
    parser.add_argument("--postgres", action="store_true", help="the coordinator's database is a PostgreSQL server")
    parser.add_argument("--keep", action="store_true", help="keep every folder, not only those with faults")
    parser.add_argument("--out", type=Path, help="where folders are kept; the temporary directory by default")
    given = parser.parse_args()
    place = given.out or Path(tempfile.mkdtemp(prefix="veilsum-chaos-"))
    place.mkdir(parents=True, exist_ok=True)
    sizes = [min(given.each, given.studies - first) for first in range(0, given.studies, given.each)]
    plans = [
        draw_federation(f"{given.seed}/{number}", size, given.sites, small_budget=number % 3 == 2)
        for number, size in enumerate(sizes)
        if given.only in (None, number)
    ]
    if given.postgres:
        server()
    began, lock, total = time.monotonic(), threading.Lock(), Verdict()

    def lane(plan: FederationPlan) -> None:
        told: list[str] = []
        verdict = run(plan, place, told, postgres=given.postgres, keep=given.keep)
        with lock:
            print("\n".join(told), flush=True)
            add(total, verdict)

    with ThreadPoolExecutor(given.lanes) as pool:
        list(pool.map(lane, plans))
    total.faults += check_noise(total)
    print(report(total, time.monotonic() - began))
    if not any(place.iterdir()):
        place.rmdir()
    return 1 if total.faults else 0


def add(total: Verdict, verdict: Verdict) -> None:
    """Add one federation's verdict to that of all."""
    total.ends += verdict.ends
    total.hits += verdict.hits
    total.releases += verdict.releases
    total.noise.values += verdict.noise.values
    total.faults += verdict.faults
    for name, account in verdict.accounts.items():
        total.accounts[f"{len(total.accounts)} {name}"] = account


def check_noise(total: Verdict) -> list[str]:
    """The variance of all noise together must be the declared one."""
    count, away = total.noise.chi_square()
    return [f"the variance of {count} values of noise is {away:.1f} sigma from the declared"] if abs(away) > CHI_SIGMAS else []


def report(total: Verdict, seconds: float) -> str:
    """Tables of ends, strikes and accounts."""
    accounts = total.accounts.values()
    count, away = total.noise.chi_square()
    lines = [f"{sum(total.ends.values())} studies in {seconds:.0f} s, {total.releases} sums released"]
    lines += [f"  {number:5d}  {end}" for end, number in total.ends.most_common()]
    lines += ["strikes:", *(f"  {number:5d}  {kind}" for kind, number in sorted(total.hits.items()))]
    lines.append(f"charges: {sum(item.charges for item in accounts)}, of these lost: {sum(item.lost for item in accounts)}")
    lines.append(f"refusals for want of budget: {sum(item.refused for item in accounts)}")
    lines.append(f"noise: {count} values, sum of squares {away:+.2f} sigma from its expectation")
    lines.append(f"faults: {len(total.faults)}")
    return "\n".join(lines + [f"  {fault}" for fault in total.faults])


if __name__ == "__main__":
    sys.exit(main())

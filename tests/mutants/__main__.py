"""``PYTHONPATH=tests python -m mutants [MODULE ...] [--sample 300] [--seed 0] [--workers 1] [--out FILE] [--list]``.

``--out`` is a file of one JSON object a mutant; what stands there is not judged again while module and tests are the same.
The exit status is 1 if a mutant survives that :mod:`.harmless` does not know.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before numpy: a process with threads is not forked

from mutants.harmless import HARMLESS
from mutants.judges import ROOT, modules
from mutants.operators import Mutant, find_mutants
from mutants.running import Trial, Workshop, preload


def choose(paths: list[str], words: str, sample: int, seed: int) -> list[Mutant]:
    """Mutants of these modules, all by default; so many of them, drawn from the seed, in the order of the code."""
    every = [path for path, _ in modules()]
    if unknown := set(paths) - set(every):
        raise SystemExit(f"not judged: {', '.join(sorted(unknown))}")
    found = [
        mutant for path in every if not paths or path in paths for mutant in find_mutants(path, (ROOT / path).read_text())[1]
    ]
    found = [mutant for mutant in found if words in mutant.name]
    if sample and sample < len(found):
        drawn = sorted(random.Random(seed).sample(range(len(found)), sample))
        found = [found[index] for index in drawn]
    return found


def digest(path: str, judges: tuple[str, ...]) -> str:
    """Of a module and of the tests that judge it."""
    return hashlib.sha256(b"\0".join((ROOT / file).read_bytes() for file in (path, *judges))).hexdigest()[:16]


def judge(judges: tuple[str, ...], chosen: dict[str, list[Mutant]], workers: int, out: Path) -> None:
    """Judge mutants, by module, that have the same judges; append what came of each to ``out``."""
    workshop = Workshop(list(chosen), judges)
    trees = {path: find_mutants(path, (ROOT / path).read_text()) for path in chosen}
    print(
        f"{sum(map(len, chosen.values()))} mutants of {', '.join(chosen)}: tests take {workshop.reach.whole:.0f} s", flush=True
    )
    digests = {path: digest(path, judges) for path in chosen}
    wanted = {mutant.name for mutants in chosen.values() for mutant in mutants}
    left = [(tree, mutant) for tree, every in trees.values() for mutant in every if mutant.name in wanted]
    trials: list[Trial] = []
    while left or trials:
        while left and len(trials) < workers:
            trials.append(workshop.start(*left.pop(0)))
        for trial in list(trials):
            verdict = trial.verdict()
            if verdict is None:
                continue
            trials.remove(trial)
            mutant = trial.mutant
            told: dict[str, Any] = {"name": mutant.name, "line": mutant.line, "kind": mutant.kind, **vars(verdict)}
            told["of"] = digests[mutant.path]
            with out.open("a") as file:
                file.write(json.dumps(told) + "\n")
            if not verdict.found:
                known = "harmless" if mutant.name in HARMLESS else "SURVIVED"
                print(f"{known} {mutant.path}:{mutant.line} in {mutant.place}: {mutant.before} -> {mutant.after}", flush=True)
        time.sleep(0.02)


def report(results: list[dict[str, Any]]) -> int:
    """Print a table of modules; returns how many survive that nothing is known of."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    unknown = []
    for item in results:
        verdict = item["found"] or ("harmless" if item["name"] in HARMLESS else "survived")
        counts[item["name"].partition("::")[0]][verdict] += 1
        unknown += [item] if verdict == "survived" else []
    heads = ("test", "import", "crash", "time", "harmless", "survived")
    print(f"{'':52}" + "".join(f"{head:>10}" for head in ("mutants", *heads)))
    total: Counter[str] = Counter()
    for path, found in sorted(counts.items()):
        total += found
        print(f"{path:52}" + "".join(f"{number:>10}" for number in (found.total(), *(found[head] for head in heads))))
    print(f"{'all':52}" + "".join(f"{number:>10}" for number in (total.total(), *(total[head] for head in heads))))
    for item in unknown:
        print(f"survived, line {item['line']}, {item['kind']}: {item['name']}")
    return len(unknown)


def main() -> int:
    """Choose, judge, report."""
    parser = argparse.ArgumentParser(prog="mutants", description=__doc__.partition("\n")[2].strip())
    parser.add_argument("modules", nargs="*", metavar="MODULE", help="path from the repository's root; all by default")
    parser.add_argument("--sample", type=int, default=0, help="judge so many, drawn at random; 0 for all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="mutants whose name holds this")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("mutants.jsonl"))
    parser.add_argument("--list", action="store_true", help="show the mutants, judge none")
    options = parser.parse_args()
    chosen = choose(options.modules, options.only, options.sample, options.seed)
    if options.list:
        for mutant in chosen:
            print(f"{mutant.line}: {mutant.kind}: {mutant.name}")
        return 0
    by = dict(modules())
    digests = {path: digest(path, by[path]) for path in {mutant.path for mutant in chosen}}
    names = {mutant.name: digests[mutant.path] for mutant in chosen}

    def judged() -> dict[str, dict[str, Any]]:
        lines = options.out.read_text().splitlines() if options.out.exists() else []
        found = [json.loads(line) for line in lines]
        return {item["name"]: item for item in found if names.get(item["name"]) == item.get("of", "")}

    done = judged()
    left: dict[tuple[str, ...], dict[str, list[Mutant]]] = defaultdict(lambda: defaultdict(list))
    for mutant in chosen:
        if mutant.name not in done:
            left[by[mutant.path]][mutant.path].append(mutant)
    preload()
    for judges, mutants in left.items():
        judge(judges, mutants, options.workers, options.out)
    return int(report(list(judged().values())) > 0)


if __name__ == "__main__":
    raise SystemExit(main())

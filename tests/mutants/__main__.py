"""``PYTHONPATH=tests python -m mutants [MODULE ...] [--sample 300] [--seed 0] [--workers 1] [--out FILE] [--list]``.

``--out`` is a file of one JSON object a mutant. What stands there is not judged again while the module is the same, and
survivors while the tests are the same too.
The exit status is 1 if a mutant survives that :mod:`.harmless` does not know.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import random
import sys
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before numpy: a process with threads is not forked

from mutants.harmless import HARMLESS
from mutants.judges import ROOT, modules
from mutants.operators import Mutant, find_mutants
from mutants.running import Trial, Verdict, Workshop, preload


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
    """Of a module, and of tests that a mutant of it survives."""
    return hashlib.sha256(b"\0".join((ROOT / file).read_bytes() for file in (path, *judges))).hexdigest()[:16]


def read(out: Path, by: dict[str, tuple[str, ...]]) -> dict[str, dict[str, Any]]:
    """What came of mutants before, by name, as far as it holds still."""
    items = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    digests = {path: (digest(path, judges), digest(path, ())) for path, judges in by.items()}
    return {
        item["name"]: item
        for item in items
        if item["of"] == digests.get(item["name"].partition("::")[0], ("", ""))[bool(item["found"])]
    }


def judge(judges: tuple[str, ...], chosen: dict[str, list[Mutant]], workers: int, out: Path) -> None:
    """Judge mutants, by module, that have the same judges; append what came of each to ``out``.

    First, in a process that has imported everything, those within functions; then the others, and those that survived there
    though an import reaches them: what it made was made without the fault.
    """
    workshop = Workshop(list(chosen), judges)
    total = sum(map(len, chosen.values()))
    print(f"{total} mutants of {', '.join(chosen)}: tests take {workshop.reach.whole:.0f} s", flush=True)
    wanted = {mutant.name for mutants in chosen.values() for mutant in mutants}

    def note(mutant: Mutant, verdict: Verdict) -> None:
        told: dict[str, Any] = {"name": mutant.name, "line": mutant.line, "kind": mutant.kind, **vars(verdict)}
        told["of"] = digest(mutant.path, () if verdict.found else judges)
        with out.open("a") as file:
            file.write(json.dumps(told) + "\n")
        wanted.discard(mutant.name)
        if not verdict.found:
            known = "harmless" if mutant.name in HARMLESS else "SURVIVED"
            print(f"{known} {mutant.path}:{mutant.line} in {mutant.place}: {mutant.before} -> {mutant.after}", flush=True)

    sys.stdout.flush()
    if not (child := os.fork()):
        code = 1
        try:
            workshop.warm()
            work(workshop, remaining(chosen, wanted), workers, note, warm=True)
            code = 0
        except BaseException:  # noqa: BLE001  # nothing may go on in a fork
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(code)
    if os.waitpid(child, 0)[1]:
        raise SystemExit("The process that judges faults within functions ended; its words stand above.")
    wanted -= set(read(out, dict.fromkeys(chosen, judges)))
    work(workshop, remaining(chosen, wanted), workers, note, warm=False)


def remaining(chosen: dict[str, list[Mutant]], wanted: set[str]) -> Iterator[tuple[ast.Module, Mutant]]:
    """Mutants that are still wanted when their turn comes, each in a tree of its own."""
    for path in chosen:
        source = (ROOT / path).read_text()
        for index, mutant in enumerate(find_mutants(path, source)[1]):
            if mutant.name in wanted:
                tree, every = find_mutants(path, source)
                yield tree, every[index]


def work(
    workshop: Workshop,
    queue: Iterator[tuple[ast.Module, Mutant]],
    workers: int,
    note: Callable[[Mutant, Verdict], None],
    *,
    warm: bool,
) -> None:
    """Try mutants, some at a time, and note what came of each; where all was imported before, not what may be its doing."""
    trials: list[Trial] = []
    while True:
        while len(trials) < workers and (item := next(queue, None)):
            if trial := workshop.start(*item):
                trials.append(trial)
        if not trials:
            return
        for trial in list(trials):
            if verdict := trial.verdict():
                trials.remove(trial)
                if verdict.found == "test":
                    workshop.found(trial.mutant, verdict.by)
                if verdict.found or not warm or not workshop.reaches_imports(trial.mutant):
                    note(trial.mutant, verdict)
        time.sleep(0.005)


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
    done = read(options.out, by)
    left: dict[tuple[str, ...], dict[str, list[Mutant]]] = defaultdict(lambda: defaultdict(list))
    for mutant in chosen:
        if mutant.name not in done:
            left[by[mutant.path]][mutant.path].append(mutant)
    preload()
    for judges, mutants in left.items():
        judge(judges, mutants, options.workers, options.out)
    names = {mutant.name for mutant in chosen}
    return int(report([item for name, item in read(options.out, by).items() if name in names]) > 0)


if __name__ == "__main__":
    raise SystemExit(main())

"""Mutants that survive and do no harm, each with the reason. A name holds the changed code: where that changes, look again."""

from __future__ import annotations

_ACCOUNTING = "privacy/veilsum_privacy/accounting"
_LEDGER = "privacy/veilsum_privacy/ledger"
_MECHANISM = "privacy/veilsum_privacy/mechanism"
_SECURESUM = "privacy/veilsum_privacy/securesum"
_FORMER = "privacy/veilsum_privacy/results/former"
_BOUND = "the largest of an array is compared with a bound far above 1"
_FORMS = "near this border the series and the closed form both have all the digits that are rounded up by"
_POINTS = "how many points there are: curves stay within a hundredth of what they are rounded up by"
_WHOLES = "either is the number itself exactly where it is whole"
_DIRECTION = "a direction is 1 or -1"
_ORDERS = "every curve has a value for each order"
_BRACKET = "where a search begins, and how often it halves, moves its end by less than what it is rounded up by"
_SHOWN = "how an object shows itself; a source of randomness shows no bits"
_LENGTH = "numpy takes any negative length for what is left"
_ORDER = "UTF-8 keeps the order of code points, which is that of strings"
_BUFFER = "bytes() around it makes the same of a buffer, with one copy more"
_COPY = "a copy has the same bytes"
_MIDDLE = "the middle one of three numbers, whichever comes first"
_EITHER = "the smaller or larger of two, whichever comes first"
_CHUNKS = "how many proposals are made at once: a matter of speed"
_WIDER = "an enclosure that is wider leaves more to exact arithmetic, which decides the same"
_PLACES = "places beyond those that are asked for, far more than the powers of 80 blocks can lose"
_SERIES = "the terms lose little more than one each; two are allowed, and ten besides"
_INT64 = "int64 is what numpy makes of such integers"
_PULLED = "a row just above the bound is pulled in by another hair, or once more: it ends at most a unit away"
_TYPE = "read by the type checker alone"
_SIGN = "a direction is 1 or -1"
_FINER = "more points than are needed for as many digits"
_BATCHES = "how much is worked on at once: a matter of speed"
_WORK = "one of 3e8 points: which of two ways finds what both find"
_JSON = "strings, numbers, lists and mappings only, whose canonical form is the same either way"
_WHERE = "conditions of which all must hold, in whatever order"
_SPARE = "a tolerance for the last digits: nothing lies at its very end"
_DISTANCE = "how far two are apart does not depend on which is first"
_TRAILING = "how many entries are taken back before all are read anew: a matter of speed"
_SOME = "releases come and go by one or more, never by none"
_PAIRED = "one list was made of the other"
_ALIKE = "all statements are about one sum by then, whichever is looked at"
_PARTICIPANT = "participant/veilsum_participant"
_EQUAL = "whether two are equal does not depend on which is first"
_TOLERANCE = "on the very border of what is allowed for rounding"
_COMMITTED = "what is looked for was committed long before this transaction began"
_FLOOR = "keeps a logarithm or a step finite: any small number does"
_UNKNOWN = "of a record whose outcome is unknown, which adds nothing"
_OUTCOMES = "privacy/veilsum_privacy/tasks/outcomes.py::Outcome"
_LOSSES = "privacy/veilsum_privacy/training/losses.py"
_CLUSTERED = "aggregation/veilsum_aggregation/clustered.py"
_WEIGHTS = "the weights are the same for any number of degrees"

HARMLESS: dict[str, str] = {
    f"{_CLUSTERED}::SiteErrors.beyond: self.sites - 1 -> self.sites + 1": _WEIGHTS,
    f"{_CLUSTERED}::SiteErrors.half_width: brentq(lambda distance: self.beyond(distance) - LEVEL, 0.0, longest, "
    "xtol=1e-12 * longest, rtol=1e-12) -> "
    "brentq(lambda distance: self.beyond(distance) - LEVEL, 0.0, longest, xtol=1e-12 * longest)": _BRACKET,
    f"{_CLUSTERED}::SiteErrors.half_width: 1e-12 -> 2e-12": _BRACKET,
    f"{_CLUSTERED}::SiteErrors.half_width: 1e-12 -> 2e-12 (2)": _BRACKET,
    "privacy/veilsum_privacy/tasks/site_scores.py::SiteScoresParameters: 1.0 -> 2.0": "a mean is bounded for counts alone, "
    "which state it",
    f"{_LOSSES}::Huber.gradient: np.clip(scores - outcomes, -self.bend, self.bend) "
    "-> np.clip(-self.bend, scores - outcomes, self.bend)": _MIDDLE,
    f"{_LOSSES}::Huber.values: error <= self.bend -> error < self.bend": "both forms have the same value there",
    f"{_LOSSES}::Poisson.gradient: np.minimum(scores, LARGEST_EXPONENT) -> np.minimum(LARGEST_EXPONENT, scores)": _EITHER,
    f"{_LOSSES}::Poisson.values: np.minimum(scores, LARGEST_EXPONENT) -> np.minimum(LARGEST_EXPONENT, scores)": _EITHER,
    f"{_LOSSES}::Poisson.constant: np.maximum(means, 1e-06) -> np.maximum(1e-06, means)": _EITHER,
    f"{_LOSSES}::Poisson.constant: 1e-06 -> 2e-06": _FLOOR,
    f"{_LOSSES}::Poisson.curvature: 1e-06 -> 2e-06": _FLOOR,
    f"{_LOSSES}::Hazards.gradient: np.minimum(scores, LARGEST_EXPONENT) -> np.minimum(LARGEST_EXPONENT, scores)": _EITHER,
    f"{_LOSSES}::Hazards.values: np.minimum(scores, LARGEST_EXPONENT) -> np.minimum(LARGEST_EXPONENT, scores)": _EITHER,
    f"{_LOSSES}::Hazards.constant: np.maximum(events, 1e-06) -> np.maximum(1e-06, events)": _EITHER,
    f"{_LOSSES}::Hazards.constant: 1e-06 -> 2e-06": _FLOOR,
    f"{_LOSSES}::Hazards.constant: np.maximum(at_risk, 1e-06) -> np.maximum(1e-06, at_risk)": _EITHER,
    f"{_LOSSES}::Hazards.constant: 1e-06 -> 2e-06 (2)": _FLOOR,
    f"{_LOSSES}::Hazards.curvature: 1e-06 -> 2e-06": _FLOOR,
    f"{_LOSSES}::intervals: np.clip(times[:, None] - starts, 0.0, ends - starts) "
    "-> np.clip(0.0, times[:, None] - starts, ends - starts)": _MIDDLE,
    f"{_OUTCOMES}.places: np.array(kept, dtype=np.intp) -> np.array(kept)": _INT64,
    f"{_OUTCOMES}.number: column.name == self.column and isinstance(column, NumberColumn) "
    "-> column.name == self.column": _TYPE,
    f"{_OUTCOMES}.split: np.clip(records.features, -1.0, 1.0) -> np.clip(-1.0, records.features, 1.0)": _MIDDLE,
    f"{_OUTCOMES}.split: np.zeros(len(records), dtype=np.bool_) -> np.zeros(len(records))": (
        "a loss that reads events has a column of them"
    ),
    f"{_OUTCOMES}.split: own.name == self.event and isinstance(own, CategoryColumn) -> own.name == self.event": _TYPE,
    f"{_OUTCOMES}.split: features[:, counted] > 0.5 -> features[:, counted] >= 0.5": "a category's feature is 0 or 1",
    f"{_OUTCOMES}.split: 0.0 -> 1.0": _UNKNOWN,
    f"{_OUTCOMES}.predictor: np.asarray(largest + np.log(np.add.reduce(parts, axis=1)), dtype=np.float64) "
    "-> np.asarray(largest + np.log(np.add.reduce(parts, axis=1)))": _TYPE,
    f"{_OUTCOMES}.predictor: np.clip(scores[:, 0], -1.0, 1.0) -> np.clip(-1.0, scores[:, 0], 1.0)": _MIDDLE,
    f"{_OUTCOMES}.predictor: np.minimum(logarithm, math.log(most)) -> np.minimum(math.log(most), logarithm)": _EITHER,
    f"{_OUTCOMES}._outcomes: np.maximum(number.low + (scaled + 1.0) * half, 0.0) "
    "-> np.maximum(0.0, number.low + (scaled + 1.0) * half)": _EITHER,
    f"{_PARTICIPANT}/protocol/policy.py::_epsilon_faults: cost > privacy.epsilon * (1 + 1e-09) "
    "-> cost >= privacy.epsilon * (1 + 1e-09)": _TOLERANCE,
    f"{_PARTICIPANT}/protocol/budgets.py::_price: noise.kind == 'distributed' -> noise.kind != 'distributed'": (
        "the two are told apart either way"
    ),
    "privacy/veilsum_privacy/securesum/agreed.py::SumPlan.noised: total + self.draw_noise(index, source) "
    "-> total - self.draw_noise(index, source)": "noise is symmetric",
    f"{_PARTICIPANT}/protocol/budgets.py::_used: 0 -> 1": "attempts of all rounds are counted, whichever is told apart",
    (
        f"{_PARTICIPANT}/protocol/budgets.py::record_refused_study: site.ledger.entries(kind=Kind.REFUSAL, study=asked.study, "
        "connection=connection) -> site.ledger.entries(study=asked.study, connection=connection)"
    ): "no other entry of a study as a whole has a message",
    f"{_PARTICIPANT}/protocol/contributions.py::Contributions._check: assignment.attempt <= row.attempt "
    "-> assignment.attempt < row.attempt": "the attempt of that very number is known, so it is one that is asked for again",
    f"{_PARTICIPANT}/protocol/contributions.py::Contributions._prepare: state or b'' -> state": (
        "nothing is decoded to nothing, whichever of the two it is"
    ),
    (
        f"{_PARTICIPANT}/protocol/payloads.py::resume_payload: row.context != checked.context or row.round != "
        "checked.assignment.round -> row.context != checked.context"
    ): "the context holds the round",
    f"{_PARTICIPANT}/protocol/limits.py::weight_faults: np.array_equal(before, factors) -> np.array_equal(factors, before)": (
        _EQUAL
    ),
    (
        f"{_PARTICIPANT}/protocol/openings.py::Openings._record_refusal: site.ledger.entries(kind=Kind.RESERVE, "
        "context=row.context, connection=connection) -> site.ledger.entries(context=row.context, connection=connection)"
    ): "the first entry of a context is its reservation",
    (
        f"{_PARTICIPANT}/protocol/openings.py::Openings._record_refusal: site.ledger.entries(kind=Kind.RESERVE, "
        "context=row.context, connection=connection) -> site.ledger.entries(kind=Kind.RESERVE, context=row.context)"
    ): _COMMITTED,
    (
        f"{_ACCOUNTING}/accountant.py::GaussianEvent.__post_init__: 0 < self.variance <= 2 ** 128 "
        "-> 0 <= self.variance <= 2 ** 128"
    ): "no noise at all is too small beside any sensitivity, which is refused next",
    f"{_ACCOUNTING}/accountant.py::_summed: True -> False": _ORDERS,
    (
        f"{_ACCOUNTING}/accountant.py::_summed: zip(curve, step_curve(*key), strict=True) -> zip(curve, step_curve(*key))"
    ): _ORDERS,
    f"{_ACCOUNTING}/figures.py::_prv: 1 -> 2": _LENGTH,
    f"{_ACCOUNTING}/figures.py::_prv: np.array(sampled, dtype=np.float64) -> np.array(sampled)": (
        "rows that begin with a rate are of floats, and so is an array of none"
    ),
    f"{_ACCOUNTING}/figures.py::calibrate_noise_multiplier: left > 0 -> left >= 0": (
        "where nothing is left of epsilon the noise is infinite, and another order needs less"
    ),
    f"{_ACCOUNTING}/gaussian.py::analytic_gaussian_epsilon: 2 -> 3": _BRACKET,
    f"{_ACCOUNTING}/gaussian.py::analytic_gaussian_epsilon: high - low > 1e-12 * high -> high - low >= 1e-12 * high": _BRACKET,
    f"{_ACCOUNTING}/domination.py::: -1 -> 1": _TYPE,
    (
        f"{_ACCOUNTING}/losses.py::LossSteps.loss: np.logaddexp(np.log1p(-self.rate)[:, np.newaxis], np.log(self.rate)[:, "
        "np.newaxis] + log_ratio) -> np.logaddexp(np.log(self.rate)[:, np.newaxis] + log_ratio, "
        "np.log1p(-self.rate)[:, np.newaxis])"
    ): "a sum of two, whichever comes first",
    f"{_ACCOUNTING}/losses.py::plan_quadrature: direction > 0 -> direction >= 0": _SIGN,
    f"{_ACCOUNTING}/losses.py::plan_quadrature: direction > 0 -> direction >= 0 (2)": _SIGN,
    f"{_ACCOUNTING}/losses.py::window: direction > 0 -> direction >= 0": _SIGN,
    f"{_ACCOUNTING}/losses.py::window: direction > 0 -> direction >= 0 (2)": _SIGN,
    (
        f"{_ACCOUNTING}/losses.py::window: exponent > exponent.max(axis=1, keepdims=True) - _DEPTH -> exponent >= "
        "exponent.max(axis=1, keepdims=True) - _DEPTH"
    ): "no point lies on the border, and none there counts",
    (
        f"{_ACCOUNTING}/losses.py::plan_quadrature: np.minimum(np.sqrt(_DIGITS / growth), (math.pi if direction > 0 else "
        "2.0) / shift) -> np.minimum((math.pi if direction > 0 else 2.0) / shift, np.sqrt(_DIGITS / growth))"
    ): _EITHER,
    f"{_ACCOUNTING}/losses.py::window: np.maximum(first - 1, 0) -> np.maximum(0, first - 1)": _EITHER,
    f"{_ACCOUNTING}/losses.py::window: np.minimum(last + 1, _SCAN - 1) -> np.minimum(_SCAN - 1, last + 1)": _EITHER,
    f"{_ACCOUNTING}/estimate.py::epsilon_by_grid: np.minimum(highest, size) -> np.minimum(size, highest)": _EITHER,
    f"{_ACCOUNTING}/estimate.py::epsilon_by_grid: 1 -> 2 (4)": "a place beyond the last of the window holds next to nothing",
    (
        f"{_ACCOUNTING}/estimate.py::epsilon_by_grid: np.bincount(places % size, weights=masses * np.exp(line.c * width * "
        "places), minlength=size) -> np.bincount(places % size, weights=masses * np.exp(line.c * width * "
        "places))"
    ): "losses below 0 can always be: place -1, which is the last of the period, is always among them",
    f"{_ACCOUNTING}/estimate.py::_untilted: direction > 0 -> direction >= 0": _SIGN,
    f"{_ACCOUNTING}/estimate.py::_untilted: 0.0 -> 1.0 (3)": "weights are divided by their sum",
    (
        f"{_ACCOUNTING}/estimate.py::choose_line: 1 -> 2 (2)"
    ): "curves do not fall, so no order above half of the largest has the shortest period",
    f"{_ACCOUNTING}/estimate.py::surely_within: 1 -> 2": "the first value is taken, and there are two",
    f"{_ACCOUNTING}/estimate.py::surely_within: 0.0 -> 1.0": _FINER,
    (
        f"{_ACCOUNTING}/estimate.py::surely_within: log_m - c * epsilon + c * math.log(c / (1 + c)) - math.log1p(c) <= "
        "math.log(delta) -> log_m - c * epsilon + c * math.log(c / (1 + c)) - math.log1p(c) < math.log(delta)"
    ): "where a bound is met exactly the other way is not needed: delta is not exceeded",
    f"{_ACCOUNTING}/estimate.py::epsilon_by_inversion: 0.0 -> 1.0": _WORK,
    f"{_ACCOUNTING}/estimate.py::epsilon_by_inversion: work > _LARGEST_WORK -> work >= _LARGEST_WORK": _WORK,
    f"{_ACCOUNTING}/estimate.py::_solve_inversion: 0 -> 1": "any scale near the largest of M will do: it is taken back",
    (
        f"{_ACCOUNTING}/estimate.py::_solve_inversion: _ROUNDING * spacing / math.pi -> _ROUNDING * spacing * math.pi"
    ): "a bound ten times as large is still a trifle of delta",
    f"{_ACCOUNTING}/estimate.py::: 300000000.0 -> 600000000.0": _WORK,
    f"{_ACCOUNTING}/estimate.py::: 44 -> 45": "the bound is some twenty times the largest error found",
    f"{_ACCOUNTING}/estimate.py::: 44 -> 43": "a bound twice as large is still a trifle of delta",
    f"{_ACCOUNTING}/estimate.py::: 1 << 14 -> 1 >> 14": _BATCHES,
    f"{_ACCOUNTING}/estimate.py::: 1 -> 2": _BATCHES,
    f"{_ACCOUNTING}/estimate.py::: 1 -> 0": _BATCHES,
    f"{_ACCOUNTING}/estimate.py::: 14 -> 15": _BATCHES,
    f"{_ACCOUNTING}/estimate.py::: 14 -> 13": _BATCHES,
    (
        f"{_ACCOUNTING}/estimate.py::epsilon_by_inversion: np.arange(points, points + count, dtype=np.float64) -> "
        "np.arange(points, points + count)"
    ): "a float times whole numbers is the same",
    f"{_ACCOUNTING}/estimate.py::_solve_inversion.missing: total <= 0 -> total < 0": "a bound above 0 is part of the sum",
    (
        f"{_ACCOUNTING}/estimate.py::_solve_inversion.missing: math.log(total) <= log_target + c * epsilon -> "
        "math.log(total) < log_target + c * epsilon"
    ): _BRACKET,
    (
        f"{_ACCOUNTING}/estimate.py::_solve_inversion: lower is not None and upper - lower <= _ACCEPTED -> "
        "upper - lower <= _ACCEPTED"
    ): "what is reached with a bound added is reached without it; for the type checker",
    f"{_ACCOUNTING}/estimate.py::_solve_inversion: upper - lower <= _ACCEPTED -> upper - lower < _ACCEPTED": _SPARE,
    f"{_ACCOUNTING}/estimate.py::_smallest: 1e-09 -> 2e-09": _BRACKET,
    f"{_ACCOUNTING}/estimate.py::_smallest: 1e-09 -> 2e-09 (2)": _BRACKET,
    (
        f"{_ACCOUNTING}/estimate.py::_smallest: high - low > 1e-07 * max(1.0, high) -> high - low >= 1e-07 * max(1.0, high)"
    ): _BRACKET,
    f"{_ACCOUNTING}/estimate.py::_log_moments: 1 -> 2": "there is one value or at least 32",
    f"{_ACCOUNTING}/estimate.py::_log_moments: 0.0 -> 1.0": "of one value nothing is turned",
    f"{_ACCOUNTING}/estimate.py::_log_moments: :max(1, _BATCH // int(quadrature.nodes[order[0]])) -> :": _BATCHES,
    f"{_ACCOUNTING}/estimate.py::_log_moments: 1 -> 2 (3)": _BATCHES,
    (
        f"{_ACCOUNTING}/estimate.py::_log_moments: _BATCH // int(quadrature.nodes[order[0]]) -> "
        "_BATCH * int(quadrature.nodes[order[0]])"
    ): _BATCHES,
    f"{_ACCOUNTING}/estimate.py::_log_moments: direction > 0 -> direction >= 0": _DIRECTION,
    f"{_ACCOUNTING}/estimate.py::_log_moments: np.errstate(divide='ignore') -> np.errstate()": "whether numpy warns",
    f"{_ACCOUNTING}/estimate.py::: 20000000.0 -> 40000000.0": _WORK,
    (
        f"{_ACCOUNTING}/estimate.py::_solve: above - np.exp(losses) * other > delta -> above - np.exp(losses) * other >= delta"
    ): "where delta is met exactly, it is met",
    (
        f"{_ACCOUNTING}/estimate.py::_solve: losses[index] > guarantee + GRID_ERROR -> losses[index] >= guarantee + GRID_ERROR"
    ): _SPARE,
    f"{_ACCOUNTING}/estimate.py::_grid_width: math.hypot(wider * log_chance / 3, math.sqrt(2 * variance * log_chance)) "
    "+ wider * log_chance / 3 > GRID_ERROR -> math.hypot(wider * log_chance / 3, math.sqrt(2 * variance * log_chance)) "
    "+ wider * log_chance / 3 >= GRID_ERROR": "on the very border the bound holds as well",
    f"{_ACCOUNTING}/estimate.py::_grid_width: np.minimum(loss * loss, wider * wider / 4) "
    "-> np.minimum(wider * wider / 4, loss * loss)": _EITHER,
    f"{_ACCOUNTING}/estimate.py::_masses: 0 -> 1": _DIRECTION,
    f"{_ACCOUNTING}/estimate.py::_masses: 1 -> 2 (2)": "beyond the last place there is hardly any mass",
    f"{_ACCOUNTING}/estimate.py::_masses: direction < 0 -> direction <= 0": _DIRECTION,
    f"{_ACCOUNTING}/estimate.py::_masses: edges > np.log1p(-rate) -> edges >= np.log1p(-rate)": (
        "on the border the logarithm is that of 0, minus infinity as well"
    ),
    f"{_ACCOUNTING}/domination.py::normal_mass: 0 -> 1": "below 1 both forms have their digits",
    f"{_ACCOUNTING}/domination.py::normal_mass: left > 0 -> left >= 0": "at 0 both forms are the same",
    f"{_ACCOUNTING}/renyi.py::: 40.0 -> 80.0 (2)": _POINTS,
    f"{_ACCOUNTING}/renyi.py::: 9.5 -> 19.0": "the tail is longer, where hardly anything is",
    f"{_ACCOUNTING}/renyi.py::: np.floor(ORDERS) -> np.ceil(ORDERS)": _WHOLES,
    f"{_ACCOUNTING}/renyi.py::: np.floor(ORDERS) -> np.ceil(ORDERS) (2)": _WHOLES,
    f"{_ACCOUNTING}/renyi.py::_between_orders: 2 * _DIGITS -> 2 + _DIGITS": _POINTS,
    f"{_ACCOUNTING}/renyi.py::_between_orders: 0.5 -> 1.0": _FORMS,
    f"{_ACCOUNTING}/renyi.py::_between_orders: 1 -> 2": "the tail is shorter by a thirtieth, where hardly anything is",
    f"{_ACCOUNTING}/renyi.py::_between_orders: 1 -> 2 (2)": _FORMS,
    f"{_ACCOUNTING}/renyi.py::_between_orders: 2 * math.pi -> 2 + math.pi": _POINTS,
    f"{_ACCOUNTING}/renyi.py::_between_orders: 2 -> 1": _POINTS,
    f"{_ACCOUNTING}/renyi.py::_between_orders: 2 -> 1 (2)": _POINTS,
    f"{_ACCOUNTING}/renyi.py::_between_orders: 2 -> 1 (3)": _POINTS,
    f"{_ACCOUNTING}/renyi.py::_between_orders: 2 -> 3": _POINTS,
    f"{_ACCOUNTING}/renyi.py::_between_orders: _DIGITS / strip -> _DIGITS * strip": _POINTS,
    f"{_ACCOUNTING}/renyi.py::_between_orders: strip / 2 -> strip * 2": _POINTS,
    f"{_ACCOUNTING}/renyi.py::_between_orders: np.abs(v) < 0.5 / float(orders[-1, 0]) "
    "-> np.abs(v) <= 0.5 / float(orders[-1, 0])": _FORMS,
    f"{_ACCOUNTING}/renyi.py::_small_excess: 16 -> 15": _FORMS,
    f"{_ACCOUNTING}/renyi.py::_small_excess: 16 -> 17": _FORMS,
    f"{_ACCOUNTING}/renyi.py::: 448, 512, 640, 768, 896, 1024], dtype=np.float64) -> 448, 512, 640, 768, 896, 1024])": (
        "numbers of which some are fractions make an array of floats"
    ),
    f"{_ACCOUNTING}/renyi.py::_whole_orders: np.logaddexp(0.0, largest + np.log(sums)) "
    "-> np.logaddexp(largest + np.log(sums), 0.0)": "a sum of two, whichever comes first",
    (
        f"{_ACCOUNTING}/renyi.py::step_curve: np.minimum(curve, sampled_curve(rate, ratio)) "
        "-> np.minimum(sampled_curve(rate, ratio), curve)"
    ): _EITHER,
    (
        f"{_ACCOUNTING}/renyi.py::step_curve: np.maximum(np.ceil(np.ldexp(curve, SCALE_BITS)), 1.0) "
        "-> np.maximum(1.0, np.ceil(np.ldexp(curve, SCALE_BITS)))"
    ): _EITHER,
    f"{_LEDGER}/checks.py::check_cohort: True -> False": _PAIRED,
    f"{_LEDGER}/checks.py::check_cohort: zip(parsed, receipts, strict=True) -> zip(parsed, receipts)": _PAIRED,
    f"{_LEDGER}/entries.py::Mechanism.check: 1 -> 2": "noise has a variance of 16 or more; without any, one stands for none",
    (
        f"{_LEDGER}/gate.py::: LUMNS.attempt).where(_COLUMNS.study == bindparam('study'), "
        "_COLUMNS.round == bindparam('round'), or_(*(_COLUMNS.kind == kin -> LUMNS.attempt).where("
        "_COLUMNS.round == bindparam('round'), _COLUMNS.study == bindparam('study'), or_(*(_COLUMNS.kind == kin"
    ): _WHERE,
    (
        f"{_LEDGER}/gate.py::: select(ledger_table).where(_COLUMNS.context == bindparam('context'), "
        "_COLUMNS.kind != Kind.REFUSAL.value) -> select(ledger_table).where(_COLUMNS.kind != Kind.REFUSAL.value, "
        "_COLUMNS.context == bindparam('context'))"
    ): _WHERE,
    (
        f"{_LEDGER}/rules.py::SiteRules._within_budget: held <= budget.epsilon * (1 + TOLERANCE) "
        "-> held < budget.epsilon * (1 + TOLERANCE)"
    ): _SPARE,
    (
        f"{_LEDGER}/rules.py::_check_figures: _close(estimate, estimate_of(charged, budget), 2 * PRV_ERROR) "
        "-> _close(estimate_of(charged, budget), estimate, 2 * PRV_ERROR)"
    ): _DISTANCE,
    (
        f"{_LEDGER}/rules.py::_check_figures: "
        "_close(spent, nearest if math.isfinite(derived) else None, TOLERANCE * max(1.0, nearest)) "
        "-> _close(nearest if math.isfinite(derived) else None, spent, TOLERANCE * max(1.0, nearest))"
    ): _DISTANCE,
    f"{_LEDGER}/rules.py::_close: abs(stated - derived) <= tolerance -> abs(stated - derived) < tolerance": _SPARE,
    (
        f"{_LEDGER}/totals.py::: select(_COLUMNS.seq, _COLUMNS.hash, _COLUMNS.kind, _COLUMNS.popu "
        "-> select(_COLUMNS.hash, _COLUMNS.seq, _COLUMNS.kind, _COLUMNS.popu"
    ): "what is in a row is asked for by name",
    f"{_LEDGER}/totals.py::: 256 -> 255": _TRAILING,
    f"{_LEDGER}/totals.py::: 256 -> 257": _TRAILING,
    f"{_LEDGER}/sums.py::Sum.add: 0 -> 1": _SOME,
    f"{_LEDGER}/sums.py::Sum.add: count >= 0 -> count > 0": _SOME,
    f"{_LEDGER}/sums.py::Sum.add: self._exact += count -> self._exact -= count": "it is asked only whether it is nought",
    f"{_SECURESUM}/rounding.py::_decisions: 1 -> 2 (6)": _WIDER,
    f"{_SECURESUM}/rounding.py::_decisions: 1 -> 2 (16)": _WIDER,
    (
        f"{_SECURESUM}/rounding.py::_decisions: np.full((blocks + 1, parts), 1 << 16, dtype=np.uint32) -> "
        "np.full((blocks + 1, parts), 1 << 16)"
    ): _INT64,
    f"{_MECHANISM}/clipping.py::UnitSums.__init__: 1 -> 0 (4)": "no row adds what a row of zeros does",
    f"{_MECHANISM}/clipping.py::UnitSums.__init__: 1 -> 2 (4)": "rows of zeros add nothing",
    (
        f"{_MECHANISM}/clipping.py::UnitSums.complete: np.add.reduceat(rows, starts, axis=0) -> np.add.reduceat(rows, starts)"
    ): "the first axis is numpy's default",
    (
        f"{_MECHANISM}/clipping.py::UnitSums.complete: begin and subjects[0] == self._subjects[begin - 1] "
        "-> subjects[0] == self._subjects[begin - 1]"
    ): "before the first record the open sum is zeros, which may be added or stand apart",
    f"{_MECHANISM}/clipping.py::truncate_to_grid: 1.0 -> 2.0": "a row of zeros may be divided by anything",
    f"{_MECHANISM}/clipping.py::truncate_to_grid: 2 -> 3 (2)": _PULLED,
    f"{_MECHANISM}/clipping.py::truncate_to_grid: 2.0 -> 4.0": _PULLED,
    f"{_MECHANISM}/clipping.py::truncate_to_grid: 52 -> 51": _PULLED,
    f"{_MECHANISM}/clipping.py::truncate_to_grid: 52 -> 53": _PULLED,
    (
        f"{_MECHANISM}/exact.py::_power: np.clip(np.frexp(values)[1], -1000, 1000) "
        "-> np.clip(-1000, np.frexp(values)[1], 1000)"
    ): _MIDDLE,
    f"{_MECHANISM}/exact.py::_power: 1000 -> 1001": "rows below 2^-1000 keep a bit more, and are far from the least number",
    f"{_MECHANISM}/exact.py::_power: 1000 -> 1001 (2)": "2^1000 itself is the only number with this exponent",
    f"{_MECHANISM}/exact.py::_power: 1.0 -> 2.0": "slices hold a bit less: the stated bound on the error holds still",
    f"{_MECHANISM}/noise.py::: 1 -> 2 (2)": _CHUNKS,
    f"{_MECHANISM}/noise.py::: 16 -> 15": _CHUNKS,
    f"{_MECHANISM}/noise.py::: 16 -> 17": _CHUNKS,
    f"{_MECHANISM}/noise.py::_edges: 0 -> 1": "the other end of a bracket 2^-126 wide: no chance is so near an integer",
    f"{_MECHANISM}/noise.py::_edges: 1 -> 2 (2)": "all weights are twice as large, and their shares the same",
    f"{_MECHANISM}/noise.py::_edges: 96 -> 95": _PLACES,
    f"{_MECHANISM}/noise.py::_edges: 96 -> 97": _PLACES,
    f"{_MECHANISM}/noise.py::_edges: weights[-1] >> 32 -> weights[-1] << 32": "weights down to the last place",
    f"{_MECHANISM}/noise.py::_exp_of_fraction: 2 -> 1 (2)": _SERIES,
    f"{_MECHANISM}/noise.py::_exp_of_fraction: 2 -> 3 (2)": _WIDER,
    f"{_MECHANISM}/noise.py::_exp_of_fraction: 2 * count -> 2 + count": _SERIES,
    f"{_MECHANISM}/noise.py::_exp_of_fraction: 10 -> 11": _WIDER,
    f"{_MECHANISM}/noise.py::_exp_of_fraction: 10 -> 9": _SERIES,
    f"{_MECHANISM}/noise.py::Sampler._enclose: 4095 -> 4094": "the last of 28 bits of x: the enclosure has room for it",
    f"{_MECHANISM}/noise.py::Sampler._enclose: np.minimum(x >> 20, _TOP << 8) -> np.minimum(_TOP << 8, x >> 20)": _EITHER,
    f"{_MECHANISM}/noise.py::_law: "
    "np.array(_edges(kappa, _WORD)[::-1], dtype=np.int64) -> np.array(_edges(kappa, _WORD)[::-1])": _INT64,
    f"{_MECHANISM}/noise.py::exp_bracket: 64 -> 63": _PLACES,
    f"{_MECHANISM}/noise.py::exp_bracket: 64 -> 65": _PLACES,
    f"{_MECHANISM}/noise.py::exp_bracket: bits + 64 + whole.bit_length() -> bits + 64 - whole.bit_length()": _PLACES,
    f"{_MECHANISM}/noise.py::exp_bracket: math.floor(x) -> math.ceil(x)": "x is the sum of the two parts that it is cut into",
    f"{_MECHANISM}/steps.py::Steps: False -> True": _SHOWN,
    f"{_MECHANISM}/steps.py::Steps: field(repr=False) -> field()": _SHOWN,
    f"{_MECHANISM}/steps.py::Steps.noised: np.clip(total, -self.bound, self.bound) "
    "-> np.clip(-self.bound, total, self.bound)": _MIDDLE,
    f"{_MECHANISM}/steps.py::poisson_sample: 1.0 -> 2.0 (2)": "at rate 1 every draw is below 2^62: not drawing is faster",
    f"{_SECURESUM}/agreed.py::SummedTask.kept_part: 1 -> 2": _LENGTH,
    (
        f"{_SECURESUM}/agreed.py::SummedTask.digest: self.declaration.model_dump(mode='json') -> self.declaration.model_dump()"
    ): _JSON,
    (f"{_SECURESUM}/agreed.py::SummedTask.digest: study.data.model_dump(mode='json') -> study.data.model_dump()"): _JSON,
    f"{_SECURESUM}/seal_files.py::inflate: pyarrow.decompress(frame, decompressed_size=size, codec='zstd', asbytes=True) -> "
    "pyarrow.decompress(frame, decompressed_size=size, codec='zstd')": _BUFFER,
    f"{_SECURESUM}/seal_files.py::inflate: True -> False": _BUFFER,
    f"{_SECURESUM}/boxes.py::pair_seed: sorted(shares, key=str.encode) -> sorted(shares)": _ORDER,
    f"{_SECURESUM}/array_bytes.py::in_range: 0.0 -> 1.0": _BOUND,
    (f"{_FORMER}/words.py::words_digest: part.astype(np.dtype('<u8'), copy=False) -> part.astype(np.dtype('<u8'))"): _COPY,
    f"{_FORMER}/words.py::words_digest: False -> True": _COPY,
    "privacy/veilsum_privacy/results/sum_evidence.py::_answers: 0 -> 1": _ALIKE,
    "privacy/veilsum_privacy/results/whole_sums.py::verify_evidence: 0 -> 1": _ALIKE,
    "privacy/veilsum_privacy/results/sum_evidence.py::_answers: True -> False": _PAIRED,
    (
        "privacy/veilsum_privacy/results/sum_evidence.py::_answers: zip(held.cohort, evidence.checks, strict=True) "
        "-> zip(held.cohort, evidence.checks)"
    ): _PAIRED,
    f"{_SECURESUM}/lanes.py::pack_lanes: 1 -> 2": _LENGTH,
    f"{_SECURESUM}/lanes.py::plan_lanes: packed >= modulus -> packed > modulus": (
        "a sum of even numbers is never the modulus, which is odd"
    ),
    f"{_SECURESUM}/opening.py::unpack_lanes: 1 -> 2 (3)": _LENGTH,
    f"{_SECURESUM}/roster.py::verify_roster: sorted(set(names), key=str.encode) -> sorted(set(names))": _ORDER,
}

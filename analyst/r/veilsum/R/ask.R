# Questions. Each makes a study and spends nothing; `...` are the options of a study.

ask <- function(data, method, args, ...) {
  if (!inherits(data, "veilsum_dataset")) {
    fail("misuse", "A question is asked of a dataset.", "Make one with veilsum_dataset(federation).")
  }
  wrap(ask_python(data$py, method, args, ...), "veilsum_study")
}

over_or_none <- function(over) if (is.null(over)) list() else list(over)

ask_count <- function(data, over = NULL, ..., by = NULL, where = NULL) {
  ask(data, "count", over_or_none(over), by = by, where = where, ...)
}

ask_mean <- function(data, over, ..., by = NULL, where = NULL) {
  ask(data, "mean", list(over), by = by, where = where, ...)
}

ask_table <- function(data, over = NULL, ..., by = NULL, at = NULL, where = NULL) {
  ask(data, "table", over_or_none(over), by = by, at = as_list(at), where = where, ...)
}

ask_compare <- function(data, over, ..., by, where = NULL) {
  ask(data, "compare", list(over), by = by, where = where, ...)
}

ask_histogram <- function(data, over, ..., edges = NULL, by = NULL, where = NULL) {
  ask(data, "histogram", list(over), edges = edges, by = by, where = where, ...)
}

ask_quantiles <- function(data, over, ..., at = NULL, edges = NULL, by = NULL, where = NULL) {
  ask(data, "quantiles", list(over), at = as_list(at), edges = edges, by = by, where = where, ...)
}

ask_independence <- function(data, row, column, ..., where = NULL) {
  ask(data, "independence", list(row, column), where = where, ...)
}

ask_subgroups <- function(data, treatment, outcome, by, ..., where = NULL) {
  ask(data, "subgroups", list(treatment, outcome, by), where = where, ...)
}

ask_correlation <- function(data, over, ..., where = NULL) ask(data, "correlation", list(over), where = where, ...)

ask_missing <- function(data, over = NULL, ..., by = NULL, where = NULL) {
  ask(data, "missing", over_or_none(over), by = by, where = where, ...)
}

ask_survival <- function(data, time, ..., event, censored, edges, by = NULL, at = NULL, where = NULL) {
  ask(data, "survival", list(time), event = event, censored = censored, edges = edges, by = by, at = as_list(at),
      where = where, ...)
}

ask_discrimination <- function(data, score, outcome, ..., event = NULL, censored = NULL, edges = NULL, where = NULL) {
  ask(data, "discrimination", list(score, outcome), event = event, censored = censored, edges = edges, where = where, ...)
}

ask_effect <- function(data, treatment, outcome, ..., score, where = NULL) {
  ask(data, "effect", list(treatment, outcome), score = score, where = where, ...)
}

ask_synthetic <- function(data, over = NULL, ..., where = NULL) {
  ask(data, "synthetic", over_or_none(over), where = where, ...)
}

ask_statistics <- function(data, ...) {
  given <- list(...)
  studies <- vapply(given, inherits, TRUE, what = "veilsum_study")
  do.call(ask, c(list(data, "statistics", unname(given[studies])), given[!studies]))
}

ask_linear <- function(data, outcome, over = NULL, ..., where = NULL, errors = NULL) {
  ask(data, "linear", c(list(outcome), over_or_none(over)), where = where, errors = errors, ...)
}

ask_logistic <- function(data, outcome, over = NULL, ..., per = NULL, where = NULL, errors = NULL) {
  ask(data, "logistic", c(list(outcome), over_or_none(over)), per = per, where = where, errors = errors, ...)
}

ask_poisson <- function(data, outcome, over = NULL, ..., exposure = NULL, offset = NULL, per = NULL, most = NULL,
                        where = NULL, errors = NULL) {
  ask(data, "poisson", c(list(outcome), over_or_none(over)), exposure = exposure, offset = offset, per = per, most = most,
      where = where, errors = errors, ...)
}

ask_cox <- function(data, time, over = NULL, ..., event, censored, edges = NULL, entry = NULL, strata = NULL, per = NULL,
                    where = NULL, errors = NULL) {
  ask(data, "cox", c(list(time), over_or_none(over)), event = event, censored = censored, edges = edges, entry = entry,
      strata = strata, per = per, where = where, errors = errors, ...)
}

ask_train <- function(data, method = "fedsgd", parameters = NULL, ...) {
  ask(data, "train", list(method), parameters = parameters, ...)
}

ask_components <- function(data, width = NULL, ...) ask(data, "components", list(), width = width, ...)

ask_evaluate <- function(data, model, ...) ask(data, "evaluate", list(model), ...)

ask_study <- function(data, method, parameters = NULL, ...) ask(data, "study", list(method), parameters = parameters, ...)

# Python takes a list even of one number.
as_list <- function(x) if (is.null(x)) NULL else as.list(x)

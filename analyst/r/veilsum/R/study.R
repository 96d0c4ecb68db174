plan <- function(study, error = NULL) wrap(ask_python(study$py, "plan", list(), error = error), "veilsum_plan")

submit <- function(study) wrap(ask_python(study$py, "submit"), "veilsum_run")

run <- function(study, directory = NULL, progress = interactive()) result(submit(study), directory, progress)

# Files of a result lie in R's own temporary directory, which goes when R ends.
result <- function(run, directory = NULL, progress = interactive()) {
  if (is.null(directory)) directory <- tempfile("veilsum-result-")
  wrap(ask_python(run$py, "result", list(directory), progress = progress), "veilsum_result")
}

abort <- function(run) {
  ask_python(run$py, "abort")
  invisible(run)
}

as_tibble.veilsum_plan <- function(x, ...) as_columns(from_helper("columns", x$py$rows()))

as.data.frame.veilsum_plan <- function(x, row.names = NULL, optional = FALSE, ...) as.data.frame(as_tibble(x))

summary.veilsum_plan <- function(object, ...) summarised(object)

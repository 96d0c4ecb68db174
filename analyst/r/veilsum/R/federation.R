veilsum_available <- function() {
  tryCatch({
    helper()
    TRUE
  }, veilsum_error = function(error) FALSE)
}

veilsum_connect <- function(settings = "analyst.toml", coordinator = NULL, identity = NULL) {
  opened(ask_python(module(), "connect", list(settings), coordinator = coordinator, identity = identity))
}

veilsum_simulate <- function(data, schema, site_column = NULL, subject = NULL, sites = NULL, seed = 0, dataset = NULL,
                             encoders = NULL) {
  opened(ask_python(module(), "simulate", list(data, schema), site_column = site_column, subject = subject, sites = sites,
                    seed = seed, dataset = dataset, encoders = encoders))
}

module <- function() {
  helper()
  reticulate::import("veilsum", convert = FALSE)
}

# Python is not told when R ends. A simulation keeps its records in files, which have to go then.
open_federations <- new.env()

opened <- function(py) {
  assign(paste0("federation", length(ls(open_federations)) + 1L), py, envir = open_federations)
  wrap(py, "veilsum_federation")
}

close_all <- function(env) {
  for (name in ls(env)) try(env[[name]]$close(), silent = TRUE)
}

.onLoad <- function(libname, pkgname) reg.finalizer(open_federations, close_all, onexit = TRUE)

close.veilsum_federation <- function(con, ...) {
  ask_python(con$py, "close")
  invisible(NULL)
}

veilsum_dataset <- function(federation, name = NULL, schema = NULL, ...) {
  args <- if (is.null(name)) list() else list(name)
  wrap(ask_python(federation$py, "dataset", args, schema = schema, ...), "veilsum_dataset")
}

veilsum_studies <- function(federation) {
  as_columns(from_helper("studies", federation$py))
}

attach_study <- function(federation, id) wrap(ask_python(federation$py, "attach", list(id)), "veilsum_run")

veilsum_open <- function(directory, authority = NULL) {
  wrap(ask_python(module(), "open_result", list(directory), authority = authority), "veilsum_result")
}

# Calls into Python. Everything goes through `attempt` of inst/python/veilsum_r.py, so that errors keep their class and advice.

state <- new.env()

helper <- function() {
  if (is.null(state$helper)) {
    path <- system.file("python", package = "veilsum")
    state$helper <- tryCatch({
      reticulate::import("veilsum", convert = FALSE)
      reticulate::import_from_path("veilsum_r", path, convert = FALSE)
    }, error = function(error) {
      fail("python_missing", "R finds no Python with the package veilsum.", paste(
        "Install it with `pip install 'veilsum-analyst[notebook]'` and name that Python, before anything of Python runs:",
        "reticulate::use_python(\"/path/to/python\"), or the environment variable RETICULATE_PYTHON.",
        "Python says:", conditionMessage(error)
      ))
    })
  }
  state$helper
}

# An error as a condition: its classes are Python's, as in veilsum_state_error, with veilsum_error as the last.
fail <- function(kinds, message, advice = "") {
  stop(structure(
    class = c(paste0("veilsum_", setdiff(kinds, "veilsum_error")), "veilsum_error", "error", "condition"),
    list(message = trimws(paste(message, advice)), call = NULL, what = message, advice = advice)
  ))
}

snake <- function(name) tolower(gsub("(?<=[a-z0-9])(?=[A-Z])", "_", name, perl = TRUE))

attempt <- function(fun, args = list(), named = list()) {
  answer <- helper()$attempt(fun, reticulate::r_to_py(unname(args)), as_dict(named))
  if (!isTRUE(reticulate::py_to_r(answer[0L]))) {
    told <- lapply(1:3, function(place) reticulate::py_to_r(answer[place]))
    fail(snake(told[[1]]), told[[2]], told[[3]])
  }
  answer[1L]
}

# A method of a Python object; arguments that are NULL are left out, which means Python's default.
ask_python <- function(object, method, args = list(), ...) {
  named <- list(...)
  attempt(object[[method]], lapply(args, to_python), lapply(named[!vapply(named, is.null, TRUE)], to_python))
}

from_helper <- function(name, ...) reticulate::py_to_r(attempt(helper()[[name]], list(...)))

as_dict <- function(named) {
  if (length(named) && (is.null(names(named)) || any(names(named) == ""))) {
    fail("misuse", "An argument has no name.", "Options of a study are named, such as epsilon = 1.")
  }
  dict <- reticulate::py_dict(character(), list())
  for (name in names(named)) reticulate::py_set_item(dict, name, named[[name]])
  dict
}

# R's values as Python's: vectors of one element are single values but in lists and under names that hold lists.
LISTS <- c("at", "categories", "participants", "values")

to_python <- function(x, listed = FALSE) {
  if (inherits(x, "python.builtin.object")) return(x)
  if (inherits(x, "veilsum_object")) return(x$py)
  if (is.data.frame(x)) return(as_dict(lapply(x, column_to_python)))
  if (inherits(x, "formula")) return(reticulate::r_to_py(formula_text(x)))
  if (is.null(x)) return(reticulate::r_to_py(NULL))
  if (is.list(x)) {
    if (is.null(names(x))) return(reticulate::r_to_py(lapply(x, to_python)))
    return(as_dict(Map(function(item, name) to_python(item, name %in% LISTS), x, names(x))))
  }
  if (!is.null(names(x))) return(to_python(as.list(x)))
  if (length(x) == 1L && !listed) scalar_to_python(x) else column_to_python(x, whole = TRUE)
}

scalar_to_python <- function(x) {
  if (is.na(x)) return(reticulate::r_to_py(NULL))
  if (is.factor(x)) x <- as.character(x)
  if (inherits(x, "Date")) x <- format(x, "%Y-%m-%d")
  whole <- is.double(x) && is.finite(x) && x == round(x) && abs(x) < .Machine$integer.max
  reticulate::r_to_py(if (whole) as.integer(x) else x)
}

# A vector as a list; NA becomes None. Numbers of a frame stay as they are stored, those of a question may be whole.
column_to_python <- function(x, whole = FALSE) {
  if (is.factor(x)) x <- as.character(x)
  if (inherits(x, "Date")) x <- format(x, "%Y-%m-%d")
  if (inherits(x, "POSIXt")) x <- format(x, "%Y-%m-%d %H:%M:%S")
  if (!is.atomic(x)) fail("misuse", "A column is a list.", "Columns of a frame are vectors or factors.")
  if (whole) return(reticulate::r_to_py(lapply(unname(x), scalar_to_python)))
  reticulate::r_to_py(lapply(unname(x), function(value) if (is.na(value)) NULL else value))
}

# A table from Python's columns.
as_columns <- function(columns) {
  made <- lapply(columns, function(column) {
    values <- switch(column[[2]], number = as.double(unlist(column[[3]])), truth = as.logical(unlist(column[[3]])),
                     as.character(unlist(column[[3]])))
    values[as.integer(unlist(column[[4]]))] <- NA
    values
  })
  tibble::new_tibble(stats::setNames(made, vapply(columns, `[[`, "", 1)), nrow = if (length(made)) length(made[[1]]) else 0L)
}

# A formula of R in the words of Python's: `^` is `**` and `c(1, 2)` is `[1, 2]`. Nothing of it is evaluated.
formula_text <- function(x) {
  if (is.name(x)) {
    name <- as.character(x)
    return(if (make.names(name) == name && !grepl(".", name, fixed = TRUE)) name else paste0("`", name, "`"))
  }
  if (is.character(x)) return(encodeString(x, quote = "'"))
  if (is.logical(x)) return(if (x) "True" else "False")
  if (!is.call(x)) return(format(x, digits = 15, scientific = FALSE))
  called <- as.character(x[[1]])
  parts <- vapply(as.list(x)[-1], formula_text, "")
  keys <- names(as.list(x)[-1])
  if (!is.null(keys)) parts <- ifelse(keys == "", parts, paste0(keys, "=", parts))
  if (called == "(") return(paste0("(", parts, ")"))
  if (called == "c") return(paste0("[", paste(parts, collapse = ", "), "]"))
  if (called %in% c("~", "+", "-", "*", "/", ":", "^", "<", ">", "<=", ">=", "==", "!=")) {
    sign <- if (called == "^") "**" else called
    return(if (length(parts) == 1L) paste0(sign, parts) else paste(parts[1], sign, parts[2]))
  }
  paste0(called, "(", paste(parts, collapse = ", "), ")")
}

wrap <- function(py, class) structure(list(py = py), class = c(class, "veilsum_object"))

print.veilsum_object <- function(x, ...) {
  cat(reticulate::py_str(x$py), "\n", sep = "")
  invisible(x)
}

tables <- function(result) {
  as.character(unlist(from_helper("names_of", result$py)))
}

as_tibble.veilsum_result <- function(x, table = NULL, ...) as_columns(from_helper("table", x$py, table))

as.data.frame.veilsum_result <- function(x, row.names = NULL, optional = FALSE, table = NULL, ...) {
  as.data.frame(as_tibble(x, table))
}

is_regression <- function(x) reticulate::py_to_r(x$py$method) == "regression"

# The columns of broom. A table that is not of coefficients has a row for each figure, named in `term`.
tidy.veilsum_result <- function(x, table = NULL, conf.level = 0.95, exponentiate = FALSE, ...) {
  if (is_regression(x) && (is.null(table) || table == "coefficients")) {
    found <- as_columns(from_helper("fitted", x$py, conf.level))
    if (exponentiate) {
      if (from_helper("linear", x$py)) warning("Coefficients of a linear model are no logarithms.", call. = FALSE)
      ratios <- c("estimate", "conf.low", "conf.high")
      found[ratios] <- lapply(found[ratios], exp)
    }
    return(found)
  }
  if (!identical(conf.level, 0.95)) fail("misuse", "Intervals of this table are of 95%.", "Leave out conf.level.")
  if (exponentiate) fail("misuse", "Only coefficients of a regression have ratios.", "Leave out exponentiate.")
  as_columns(from_helper("tidied", x$py, table))
}

glance.veilsum_result <- function(x, ...) {
  found <- as_columns(from_helper("about", x$py))
  names(found)[names(found) == "name"] <- "study.name"
  if (is_regression(x)) {
    tests <- as_tibble(x, "coefficients tests")
    keep <- c(statistic = "statistic", df = "degrees", p.value = "p_value", r.squared = "r_squared")
    keep <- keep[keep %in% names(tests)]
    found[names(keep)] <- tests[1, keep]
  }
  found
}

coef.veilsum_result <- function(object, ...) {
  found <- tidy(object, "coefficients")
  stats::setNames(found$estimate, found$term)
}

confint.veilsum_result <- function(object, parm, level = 0.95, ...) {
  found <- tidy(object, "coefficients", conf.level = level)
  ends <- c((1 - level) / 2, (1 + level) / 2)
  made <- matrix(c(found$conf.low, found$conf.high), ncol = 2L,
                 dimnames = list(found$term, paste(format(100 * ends, trim = TRUE, digits = 3), "%")))
  if (missing(parm)) made else made[parm, , drop = FALSE]
}

predict.veilsum_result <- function(object, newdata, ...) {
  values <- as.double(unlist(from_helper("predicted", object$py, to_python(newdata))))
  values[is.nan(values)] <- NA
  values
}

summary.veilsum_result <- function(object, ...) summarised(object)

# A text that prints itself, once, as R's summaries do.
summarised <- function(object) structure(reticulate::py_to_r(ask_python(object$py, "summary")), class = "veilsum_summary")

print.veilsum_summary <- function(x, ...) {
  cat(unclass(x), "
", sep = "")
  invisible(x)
}

# A table as a journal prints it: a tibble of texts, which prints with its title and notes.
paper_table <- function(result, table = NULL, nonnormal = character()) {
  told <- from_helper("paper", result$py, table, as.list(nonnormal))
  made <- as_columns(told[[1]])
  structure(made, class = c("veilsum_paper", class(made)), title = told[[2]], notes = as.character(unlist(told[[3]])), text = told[[4]])
}

print.veilsum_paper <- function(x, ...) {
  if (is.null(attr(x, "text"))) return(NextMethod())
  cat(attr(x, "text"))
  invisible(x)
}

export_paper <- function(result, directory, formats = c("html", "latex", "word"), nonnormal = character()) {
  as.character(unlist(from_helper("written", result$py, directory, as.list(formats), as.list(nonnormal))))
}

save_result <- function(result, directory) wrap(ask_python(result$py, "save", list(directory)), "veilsum_result")

verify <- function(result, authority = NULL) {
  proven <- ask_python(result$py, "verify", list(), authority = authority)
  wrap(proven, "veilsum_verified")
}

# Curves as steps; coefficients as ratios without the constant; of other tables the figure that says most.
DRAWN <- c("odds ratio", "mean", "value", "share", "count", "correlation")

plot.veilsum_result <- function(x, table = NULL, ...) {
  fitted <- is_regression(x) && (is.null(table) || table == "coefficients")
  if (fitted) {
    ratios <- !from_helper("linear", x$py)
    found <- tidy(x, "coefficients", exponentiate = ratios)
    shown <- as.character(unlist(from_helper("labels", x$py)))
    slopes <- found$term != "Intercept"
    plot_forest(found[slopes, ], line = if (ratios) 1 else 0, log = if (ratios) "x" else "", labels = shown[-1][slopes],
                called = shown[1], ...)
    return(invisible(found[slopes, ]))
  }
  found <- tidy(x, table)
  if (all(c("time", "n.risk") %in% names(found))) {
    plot_curves(found, tested(x, table), ...)
  } else {
    terms <- c(intersect(DRAWN, found$term), found$term)
    if ("estimate" %in% names(found)) found <- found[found$term == terms[1], ]
    plot_forest(found, ...)
  }
  invisible(found)
}

nothing_to_draw <- function() fail("misuse", "The table has no figure with an interval to draw.", "Name another table.")

COLOURS <- c("#1f4e79", "#c55a11", "#548235", "#7f6000", "#7030a0", "#404040")

step_points <- function(time, value) list(x = rep(c(0, time), each = 2L)[-1], y = rep(c(1, value), each = 2L)[-(2L * length(value) + 2L)])

# Of curves the log-rank test, as it stands beside them.
tested <- function(x, table) {
  name <- paste(if (is.null(table)) tables(x)[1] else table, "tests")
  p <- if (name %in% tables(x)) as_tibble(x, name)$p_value
  if (length(p) != 1L || is.na(p)) return("")
  text <- if (p < 0.001) "<.001" else if (p > 0.99) ">.99" else sub("^0", "= ", sprintf(if (p < 0.01) "%.3f" else "%.2f", p))
  if (p < 0.05 && sub("= ", "", text) == ".05") text <- paste("=", sub("^0", "", sprintf("%.3f", min(p, 0.049))))
  paste("Log-rank P", text)
}

# Curves fall in steps at the ends of the intervals that were asked for; nothing within one is released. Below them stands how
# many were at risk in the interval that begins there, less half of those who were censored in it.
plot_curves <- function(found, test = "", xlab = NULL, ylab = "Survival", ...) {
  keys <- setdiff(names(found), c("term", "time", "n.risk", "estimate", "std.error", "conf.low", "conf.high", "note", "unit"))
  levels <- lapply(keys, function(key) paste0(key, ": ", found[[key]]))
  group <- if (length(keys)) do.call(paste, c(levels, sep = ", ")) else rep("", nrow(found))
  units <- if ("unit" %in% names(found)) unique(found$unit[!is.na(found$unit)])
  if (is.null(xlab)) xlab <- paste(c("Time", units), collapse = ", ")
  if (all(is.na(found$estimate))) nothing_to_draw()
  groups <- unique(group)
  old <- par(mar = c(6 + length(groups), max(4.6, 2.5 + 0.55 * max(nchar(groups))), 1, 2))
  on.exit(par(old))
  ends <- sort(unique(c(0, found$time)))
  graphics::plot(NULL, xlim = range(ends), ylim = c(0, 1), xlab = "", ylab = "", axes = FALSE, ...)
  title(xlab = xlab, line = 2.3)
  title(ylab = ylab, line = 3.4)
  axis(1, at = if (length(ends) > 12L) pretty(ends) else ends)
  axis(2, at = 0:5 / 5, labels = paste0(0:5 * 20, "%"), las = 1)
  mtext("No. at risk, less half of those censored in the interval", side = 1, line = 4, at = 0, adj = 0, cex = 0.8)
  mtext(test, side = 3, line = -1, adj = 1, cex = 0.9)
  for (place in seq_along(groups)) {
    all_of <- found[group == groups[place], ]
    begins <- c(0, ends)[match(all_of$time, ends)]
    mtext(format(pmax(round(all_of$n.risk), 0), big.mark = ",", trim = TRUE), side = 1, line = 4 + place, at = begins, cex = 0.8)
    mtext(groups[place], side = 1, line = 4 + place, at = par("usr")[1] - strwidth("00,000"), adj = 1, cex = 0.8)
    own <- all_of[!is.na(all_of$estimate), ]
    if (!nrow(own)) next
    colour <- COLOURS[(place - 1L) %% length(COLOURS) + 1L]
    low <- step_points(own$time, pmax(ifelse(is.na(own$conf.low), own$estimate, own$conf.low), 0))
    high <- step_points(own$time, pmin(ifelse(is.na(own$conf.high), own$estimate, own$conf.high), 1))
    polygon(c(low$x, rev(high$x)), c(low$y, rev(high$y)), col = paste0(colour, "33"), border = NA)
    lines(step_points(own$time, own$estimate), col = colour, lty = place, lwd = 2)
  }
  if (length(groups) > 1L) {
    legend("bottomleft", groups, col = COLOURS[(seq_along(groups) - 1L) %% length(COLOURS) + 1L], lty = seq_along(groups),
           lwd = 2, bty = "n")
  }
}

# "1.67 (1.54 to 1.82)", with as many decimals as the interval's length tells; a dash where there is none.
interval_text <- function(found, ratios) {
  width <- found$conf.high - found$conf.low
  width[!is.finite(width) | width <= 0] <- NA
  digits <- if (ratios) ifelse(found$estimate < 0.1, 4, 2) else pmin(pmax(ifelse(is.na(width), 2, 1 - floor(log10(width / 4))), 0), 9)
  digits[is.na(digits)] <- 2
  told <- function(value) ifelse(is.finite(value), sub("^-", "\u2212", sprintf(paste0("%.", digits, "f"), value)), "not bounded")
  ends <- ifelse(is.na(found$conf.low) | is.na(found$conf.high), "", paste0(" (", told(found$conf.low), " to ", told(found$conf.high), ")"))
  ifelse(is.na(found$estimate), "\u2014", paste0(told(found$estimate), ends))
}

# Estimates with their intervals, the first on top; what is not estimable keeps its line, without a point. Ratios beyond a
# thousand are drawn to the edge: their interval says nothing.
plot_forest <- function(found, xlab = NULL, line = NULL, log = "", labels = NULL, called = found$term[1], ...) {
  if (!("estimate" %in% names(found)) || all(is.na(found$estimate))) nothing_to_draw()
  if (is.null(xlab)) {
    about <- if (is.null(labels)) unlist(lapply(intersect(c("column", "unit"), names(found)), function(key) unique(found[[key]])))
    xlab <- paste(c(if (length(about) <= 2L) about[!is.na(about)], called), collapse = ", ")
  }
  keys <- names(found)[vapply(found, is.character, TRUE) & !(names(found) %in% c("note", "unit", "method"))]
  varied <- keys[vapply(found[keys], function(values) length(unique(values)) > 1L, TRUE)]
  if (is.null(labels)) labels <- do.call(paste, c(unname(as.list(found[if (length(varied)) varied else keys[1]])), sep = ", "))
  bounds <- if (log == "x") c(1e-3, 1e3) else c(-Inf, Inf)
  numbers <- c(found$estimate, found$conf.low, found$conf.high, line)
  ends <- range(pmin(pmax(numbers[is.finite(numbers)], bounds[1]), bounds[2]))
  place <- rev(seq_len(nrow(found)))
  text <- interval_text(found, log == "x")
  old <- par(mar = c(5, min(20, 2 + 0.5 * max(nchar(labels))), 2, min(20, 2 + 0.5 * max(nchar(text)))))
  on.exit(par(old))
  graphics::plot(NULL, xlim = ends, ylim = c(0.5, nrow(found) + 0.5), yaxt = "n", xlab = xlab, ylab = "", log = log, bty = "n", ...)
  axis(2, at = place, labels = labels, las = 1, tick = FALSE)
  axis(4, at = c(place, nrow(found) + 0.5), labels = c(text, "Estimate (95% CI)"), las = 1, tick = FALSE, cex.axis = 0.9)
  if (!is.null(line)) abline(v = line, col = "grey")
  edges <- par("usr")[1:2] # to which an end that is open reaches
  if (log == "x") edges <- 10^edges
  low <- ifelse(is.na(found$conf.low), edges[1], pmax(found$conf.low, ends[1]))
  high <- ifelse(is.na(found$conf.high), edges[2], pmin(found$conf.high, ends[2]))
  told <- !is.na(found$estimate)
  segments(low[told], place[told], high[told], place[told])
  points(found$estimate, place, pch = 15)
}

# Records of three hospitals, hostile ones among them: missing values, a quote and an accent in a level.
hospital <- function(seed, n = 300L) {
  set.seed(seed)
  age <- round(pmin(pmax(rnorm(n, 62, 12), 20), 90))
  arm <- factor(sample(c("placebo", "l'actif \u00e9"), n, TRUE), c("placebo", "l'actif \u00e9"))
  frame <- data.frame(
    age = age, sex = sample(c("f", "m"), n, TRUE), arm = arm,
    died = ifelse(runif(n) < plogis(-1 + 0.05 * (age - 60) - 0.6 * (arm != "placebo")), "yes", "no"),
    years = round(runif(n, 0.1, 7.9), 2), empty = rep(NA_real_, n)
  )
  frame$age[seq_len(5)] <- NA
  frame$sex[6:9] <- NA
  frame
}

category <- function(name, ...) list(kind = "category", name = name, categories = c(...))

schema <- list(max_records = 1000, columns = list(
  list(kind = "number", name = "age", label = "Age", low = 18, high = 90, unit = "years"),
  category("sex", "f", "m"), category("arm", "placebo", "l'actif \u00e9"), category("died", "no", "yes"),
  list(kind = "number", name = "years", low = 0, high = 8), list(kind = "number", name = "empty", low = 0, high = 1)
))

records <- lapply(c(north = 1, south = 2, west = 3), hospital)

made <- new.env()

# One simulated federation serves all tests of a process.
patients <- function(...) {
  skip_if_not(veilsum_available(), "no Python with the package veilsum")
  if (is.null(made$federation)) made$federation <- veilsum_simulate(records, schema)
  veilsum_dataset(made$federation, ...)
}

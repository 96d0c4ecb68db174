library(testthat)
library(veilsum)
test_check("veilsum")

"""Whether a delta is small enough, for whoever plans a study or decides on it."""

import math

from veilsum_privacy.study.study import Study


def delta_warning(study: Study, records: int | None = None) -> str:
    """Why a study's delta guarantees too little to so many records of a site; empty where it does not.

    Publishing each record outright with the chance delta is (0, delta)-private, so from 1 / n on a guarantee bears that a
    record is published for certain (Dwork and Roth 2014, section 2.3).

    Args:
        study: whose delta.
        records: n, expected of a site; by default the public bound of its schema.
    """
    n, delta = records or study.data.max_records, study.privacy.delta
    if study.privacy.noise == "none" or delta <= 1.0 / n:
        return ""
    found = "" if records else ", the schema's max_records"
    return (
        f"Delta {delta:g} is above 1 / {n:,}{found}: publishing each record outright with probability {delta:g}, about"
        f" {delta * n:,.0f} of them at a site, would keep this guarantee. Ask for a delta well below that"
        f" (delta = {min(1e-5, 10.0 ** math.floor(math.log10(0.1 / n))):g} under [privacy])."
    )

"""A site's audit of its own releases on made-up records: whether they tell more than the ledger books for them."""

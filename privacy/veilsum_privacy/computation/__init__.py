"""A site's part of a sum: the task on its records, total whatever they hold, and the rehearsal before any is read."""

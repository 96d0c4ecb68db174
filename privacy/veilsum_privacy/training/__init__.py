"""Local training at a site: what a task runs between a broadcast model and an update. It clips nothing and adds no noise."""

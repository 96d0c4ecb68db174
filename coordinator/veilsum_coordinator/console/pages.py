"""The operator's pages and the form that stops a study."""

from __future__ import annotations

import logging
from typing import Any

from starlette.responses import Response

from veilsum_coordinator.console import facts
from veilsum_coordinator.protocol.settings import CoordinatorConfig, load_coordinator_config, read_coordinator_settings
from veilsum_node.errors import Unavailable, VeilsumError
from veilsum_node.process.software import installed_version
from veilsum_node.telemetry.health import ask_ready
from veilsum_node.telemetry.logs import printable
from veilsum_node.web.application import Page, PageRequest
from veilsum_node.web.configuration import setting_rows
from veilsum_node.web.people import Right

LOG = logging.getLogger("veilsum.console")


class OperatorPages:
    """The pages; configuration and sources are read anew for each."""

    def __init__(self, sources: facts.Sources) -> None:
        self._from = sources

    def pages(self) -> list[Page]:
        """All pages, as they stand in the navigation."""
        return [
            Page("/", self.studies, "Studies"),
            Page("/study/{study}", self.study),
            Page("/study/{study}", self.abort, right=Right.OPERATE, form=True),
            Page("/members", self.members, "Members"),
            Page("/requests", self.requests, "Requests"),
            Page("/refusals", self.refusals, "Log-ins"),
            Page("/storage", self.storage, "Storage"),
            Page("/health", self.health, "Health"),
            Page("/settings", self.settings, "Settings", Right.OPERATE),
        ]

    @property
    def _config(self) -> CoordinatorConfig:
        return load_coordinator_config(self._from.path)

    def _render(self, asked: PageRequest, template: str, board: str = "", **values: Any) -> Response:
        """A page with the link to its curves."""
        grafana = self._from.settings.grafana
        curves = f"{grafana}/d/{board}" if grafana and board else ""
        return asked.render(template, curves=curves, **values)

    def studies(self, asked: PageRequest) -> Response:
        """Every study."""
        with self._from.connect() as remote:
            rows = [facts.study_row(item) for item in reversed(remote.list())]
        return self._render(asked, "studies.html.j2", "veilsum-rounds", rows=rows)

    def study(self, asked: PageRequest) -> Response:
        """One study, by round."""
        with self._from.connect() as remote:
            study = remote.show(remote.find(asked.path["study"]))
        row, rounds = facts.study_row(study), facts.round_rows(study)
        return self._render(asked, "one_study.html.j2", "veilsum-rounds", row=row, rounds=rounds, study=study)

    def abort(self, asked: PageRequest) -> Response:
        """Stop a study for good."""
        with self._from.connect() as remote:
            done = remote.abort(remote.find(asked.path["study"]))
        LOG.warning("%s aborted study %s", printable(asked.person.name), done.study[:12])
        return asked.go(f"/study/{done.study}")

    def members(self, asked: PageRequest) -> Response:
        """Members and their sessions."""
        with self._from.connect() as remote:
            info = remote.describe()
        rows = facts.member_rows(info, facts.metrics(self._config), facts.record(self._from.settings), facts.now())
        return self._render(asked, "members.html.j2", "veilsum-rounds", rows=rows, info=info)

    def requests(self, asked: PageRequest) -> Response:
        """Requests to sign."""
        settings = self._from.settings
        rows = facts.request_rows(settings, facts.record(settings))
        return self._render(asked, "requests.html.j2", rows=rows, folder=settings.requests)

    def refusals(self, asked: PageRequest) -> Response:
        """Who logged in, and what was refused."""
        with self._from.connect() as remote:
            found = facts.refusal_rows(remote.list(), facts.metrics(self._config))
        logins = facts.login_rows(facts.record(self._from.settings))
        return self._render(
            asked, "refusals.html.j2", "veilsum-rounds", logins=logins, record=self._from.settings.record, **found
        )

    def storage(self, asked: PageRequest) -> Response:
        """What studies occupy. Archiving and deleting one come here, as forms beside :meth:`abort`."""
        return self._render(asked, "storage.html.j2", **facts.storage(self._config))

    def health(self, asked: PageRequest) -> Response:
        """How the coordinator is; what a command checks of disk, backup and certificates comes here as further rows."""
        rows = []
        for name, look in (("service", self._ready), ("interface", self._answers)):
            try:
                rows.append({"state": "ok", "of": name, "found": look(), "what to do": ""})
            except VeilsumError as error:
                rows.append({"state": "failed", "of": name, "found": error.message, "what to do": error.advice})
        rows.append({"state": "ok", "of": "version", "found": f"veilsum {installed_version()}", "what to do": ""})
        return self._render(asked, "state.html.j2", rows=rows)

    def _ready(self) -> str:
        found = ask_ready(self._config.metrics)
        if not found.ready:
            raise Unavailable(found.reason, "See the coordinator's log.")
        return "serves, and its database answers"

    def _answers(self) -> str:
        with self._from.connect() as remote:
            return f"{remote.describe().coordinator} proved its name"

    def settings(self, asked: PageRequest) -> Response:
        """The configuration, to read."""
        rows = setting_rows(read_coordinator_settings(self._from.path), self._from.path)
        return self._render(asked, "values.html.j2", rows=rows, path=self._from.path)

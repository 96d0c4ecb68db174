"""The operator's pages and the forms that stop, archive and delete studies."""

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from starlette.responses import Response

from veilsum_coordinator.console import facts
from veilsum_coordinator.protocol.settings import CoordinatorConfig, load_coordinator_config, read_coordinator_settings
from veilsum_coordinator.results.retirement import (
    HeldStudy,
    archive_study,
    delete_study,
    find_study,
    held_studies,
    open_holdings,
)
from veilsum_node.errors import Misuse, StateError, Unavailable, VeilsumError
from veilsum_node.identity.certificate import moment
from veilsum_node.phrases import counted
from veilsum_node.process.software import installed_version
from veilsum_node.telemetry.health import ask_ready
from veilsum_node.telemetry.logs import printable
from veilsum_node.web.application import RENEWS, Page, PageRequest
from veilsum_node.web.configuration import setting_rows
from veilsum_node.web.looking import Kept, Looks, Row
from veilsum_node.web.people import Right

LOG = logging.getLogger("veilsum.console")


class OperatorPages:
    """The pages; configuration and sources are read anew for each."""

    def __init__(self, sources: facts.Sources) -> None:
        self._from = sources
        self._looks, self._held, self._stored = Looks(), Kept[list[HeldStudy]](), Kept[dict[str, Any]]()

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
            Page("/storage", self.delete_due, right=Right.OPERATE, form=True),
            Page("/storage/{study}", self.held),
            Page("/storage/{study}", self.settle, right=Right.OPERATE, form=True),
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
        self._forget()
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
        """What studies occupy, when they are deleted by themselves, and which a number of days would delete now."""
        config, days = self._config, asked.query.get("days", "").strip()
        held = self._known(config)
        due = facts.due(held, days) if days else None
        stored = self._stored.of(config, lambda: facts.storage(config, held))
        found = {**stored, **facts.places(config, self._from.settings)}
        return self._render(asked, "storage.html.j2", retention=config.retention, due=due, now=facts.now(), **found)

    def delete_due(self, asked: PageRequest) -> Response:
        """Delete the studies that the page listed for a number of days, if these are still the ones."""
        config, form = self._config, asked.form
        with open_holdings(config) as (database, results):
            due = facts.due(held_studies(database, results), form.get("days", ""))
            if form.get("shown") != due.digest:
                raise StateError("Other studies are due by now than the page listed; nothing was deleted.", "Ask again.")
            if form.get("name", "").strip() != due.words:
                raise Misuse("The words do not match; nothing was deleted.", f"Type: {due.words}")
            proofs = facts.places(config, self._from.settings)["proofs"] if "keep" in form else None
            for item in due.studies:
                delete_study(database, results, item, facts.now(), proofs=proofs)
                LOG.warning("%s deleted study %s", printable(asked.person.name), item.digest.hex()[:12])
        return self._done(asked, f"{counted(len(due.studies), 'study is', 'studies are')} deleted.", proofs)

    def held(self, asked: PageRequest) -> Response:
        """What is kept of one study, and the forms that archive and delete it, with what becomes of it."""
        config = self._config
        item = find_study(self._known(config), asked.path["study"])
        values: dict[str, Any] = {**facts.places(config, self._from.settings), "due": item.expires <= facts.now()}
        return self._render(
            asked, "held.html.j2", item=item, size=facts.size(item.size), expires=moment(item.expires), **values
        )

    def settle(self, asked: PageRequest) -> Response:
        """Archive a study, or delete it once its name was typed."""
        config, form = self._config, asked.form
        places = facts.places(config, self._from.settings)
        with open_holdings(config) as (database, results):
            item = find_study(held_studies(database, results), asked.path["study"])
            kept: Path | None
            if form.get("action") == "archive":
                done, kept = "archived", archive_study(database, results, item, places["archive"])
            elif form.get("action") == "delete":
                if form.get("name", "").strip() != item.name:
                    raise Misuse("The name does not match; nothing was deleted.", f"Type the study's name: {item.name}")
                proofs = places["proofs"] if "keep" in form else None
                done, kept = "deleted", delete_study(database, results, item, facts.now(), proofs=proofs)
            else:
                raise Misuse("The form neither archives nor deletes.")
        LOG.warning("%s %s study %s", printable(asked.person.name), done, item.digest.hex()[:12])
        return self._done(asked, f"The study {item.name} is {done}.", kept)

    def _known(self, config: CoordinatorConfig) -> list[HeldStudy]:
        return self._held.of(config, lambda: facts.held(config))

    def _forget(self) -> None:
        """Studies changed: what was found of them is found anew."""
        self._held.forget()
        self._stored.forget()

    def _done(self, asked: PageRequest, said: str, kept: Path | None) -> Response:
        self._forget()
        return self._render(asked, "done.html.j2", said=said, kept=kept)

    def health(self, asked: PageRequest) -> Response:
        """How the coordinator is: whether it answers, and what `coordinator check` finds."""
        checks = [("service", partial(_row, "service", self._ready)), ("interface", partial(_row, "interface", self._answers))]
        rows = self._looks.rows([*checks, *self._from.checks()], again=RENEWS not in asked.query)
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


def _row(name: str, look: Callable[[], str]) -> list[Row]:
    try:
        return [{"state": "ok", "of": name, "found": look(), "what to do": ""}]
    except VeilsumError as error:
        return [{"state": "failed", "of": name, "found": error.message, "what to do": error.advice}]

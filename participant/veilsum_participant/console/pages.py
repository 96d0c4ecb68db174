"""The pages of a site's console and its forms."""

import base64
import hashlib
import json
import logging
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from starlette.responses import Response

from veilsum_node.errors import Misuse, StateError
from veilsum_node.process.software import installed_version
from veilsum_node.telemetry.logs import printable
from veilsum_node.web.application import HEADERS, RENEWS, Page, PageRequest
from veilsum_node.web.configuration import setting_rows
from veilsum_node.web.looking import Kept, Looks
from veilsum_node.web.people import Right
from veilsum_participant.cli.budget_changes import change_budget
from veilsum_participant.console import facts
from veilsum_participant.protocol.decisions import approve, decline, shown_study, waiting_studies
from veilsum_participant.session.beside import open_beside, open_to_read
from veilsum_participant.settings.config import ParticipantConfig, load_participant_config, read_participant_settings
from veilsum_participant.store.pending import PendingState
from veilsum_privacy.dossier import render as render_dossier

LOG = logging.getLogger("veilsum.console")

_STYLE = re.compile(r"<style>(.*?)</style>", re.DOTALL)


class SitePages:
    """The pages of the site whose ``participant.toml`` lies at a path; it is read anew for each, as commands do.

    Args:
        path: of the configuration.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._looks, self._verifications = path, Looks(), Kept[facts.Found]()

    def pages(self) -> list[Page]:
        """All pages, as they stand in the navigation."""
        return [
            Page("/", self.inbox, "Inbox"),
            Page("/study/{study}", self.study),
            Page("/study/{study}", self.decide, right=Right.DECIDE, form=True),
            Page("/budgets", self.budgets, "Budgets"),
            Page("/budgets", self.set_budget, right=Right.DECIDE, form=True),
            Page("/ledger", self.ledger, "Ledger"),
            Page("/ledger/verify", self.verify, form=True),
            Page("/dossier", self.dossier, "Dossier"),
            Page("/dossier/page", self.dossier_page),
            Page("/dossier/twin", self.dossier_twin),
            Page("/health", self.health, "Health"),
            Page("/settings", self.settings, "Settings", Right.OPERATE),
        ]

    @property
    def _config(self) -> ParticipantConfig:
        return load_participant_config(self._path)

    def inbox(self, asked: PageRequest) -> Response:
        """What waits, and what the site takes part in."""
        config = self._config
        if not config.state.exists():  # the participant was not started yet
            return asked.render("inbox.html.j2", waiting=[], known=[], manual=config.policy.approval == "manual")
        with open_to_read(config) as site:
            waiting = [facts.inbox_row(item) for item in waiting_studies(site)]
        known = facts.known_studies(config)
        return asked.render("inbox.html.j2", waiting=waiting, known=known, manual=config.policy.approval == "manual")

    def study(self, asked: PageRequest) -> Response:
        """One waiting study in words; of one that waits no more, what is on record."""
        with open_to_read(self._config) as site:
            try:
                item = shown_study(site, asked.path["study"])
            except Misuse:
                with suppress(ValueError):
                    if site.ledger.entries(study=bytes.fromhex(asked.path["study"])):
                        return asked.go(f"/ledger?study={asked.path['study'][:12]}")
                raise
        return asked.render("study.html.j2", item=facts.inbox_row(item), words=facts.in_words(item))

    def decide(self, asked: PageRequest) -> Response:
        """Approve or decline, under the name of the log-in, what was shown to whoever decides."""
        study, reason, form = asked.path["study"], asked.form.get("reason", ""), asked.form
        with open_beside(self._config) as site:
            seen = facts.in_words(shown_study(site, study)).sha256
            if form.get("shown") != seen:
                raise StateError("What is known of this study has changed since you opened its page.", "Read it again.")
            if form.get("decision") == "approve":
                done = approve(site, study, asked.person.name, reason)
            elif form.get("decision") == "decline":
                done = decline(site, study, asked.person.name, reason)
            else:
                raise Misuse("The form neither approves nor declines.")
        LOG.info("%s: %s %s", printable(asked.person.name), form["decision"], done.digest.hex()[:12])
        if done.state == PendingState.WAITING:  # for somebody else's word
            return asked.go(f"/study/{done.digest.hex()}")
        return asked.go(f"/ledger?study={done.digest.hex()[:12]}")  # the participant may have joined it by now

    def budgets(self, asked: PageRequest) -> Response:
        """Budgets with their history, and what if they were others."""
        config, query = self._config, asked.query
        answer: list[tuple[str, str]] = []
        if query.get("population"):
            texts = (query.get(name, "") for name in ("population", "epsilon", "study", "count"))
            answer = facts.what_if(config, *texts)
        rows, known = facts.budget_rows(config), facts.known_studies(config)
        waiting = facts.waiting_budgets(config)
        return asked.render("budgets.html.j2", rows=rows, known=known, answer=answer, query=query, waiting=waiting)

    def set_budget(self, asked: PageRequest) -> Response:
        """Change a budget."""
        form, config = asked.form, self._config
        try:
            delta = float(form.get("delta", ""))
        except ValueError as error:
            raise Misuse(f"{form.get('delta', '')!r} is not a delta.", "Give a number such as 1e-5.") from error
        population, epsilon = form.get("population", ""), form.get("epsilon", "").strip()
        change_budget(config, population, epsilon, delta, reason=form.get("reason", ""), operator=asked.person.name)
        LOG.info("%s: budget of %s", printable(asked.person.name), printable(population))
        return asked.go("/budgets")

    def ledger(self, asked: PageRequest) -> Response:
        """Search the ledger."""
        return asked.render("ledger.html.j2", **facts.ledger_page(self._config, dict(asked.query)))

    def verify(self, asked: PageRequest) -> Response:
        """Verify the ledger, if a file came against it."""
        export = asked.form.get("export") or None
        return asked.render("verified.html.j2", compared=export is not None, **facts.verified(self._config, export))

    def _made(self, contact: str = "") -> dict[str, Any]:
        return facts.dossier(self._config, contact, self._verifications)

    def dossier(self, asked: PageRequest) -> Response:
        """What the dossier says in short, and where it is whole."""
        return asked.render("report.html.j2", made=self._made())

    def dossier_page(self, asked: PageRequest) -> Response:
        """The dossier itself: its one style sheet is allowed by its digest, and nothing else runs or loads."""
        text = render_dossier(self._made(asked.query.get("contact", "")))
        digests = [base64.b64encode(hashlib.sha256(style.encode()).digest()).decode() for style in _STYLE.findall(text)]
        allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
        policy = (
            f"default-src 'none'; style-src {allowed}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; sandbox"
        )
        return Response(text, media_type="text/html; charset=utf-8", headers=HEADERS | {"Content-Security-Policy": policy})

    def dossier_twin(self, asked: PageRequest) -> Response:
        """The same in JSON, as a file."""
        text = json.dumps(self._made(), ensure_ascii=False, allow_nan=False, indent=1)
        return Response(
            text, media_type="application/json", headers={"Content-Disposition": 'attachment; filename="dossier.json"'}
        )

    def health(self, asked: PageRequest) -> Response:
        """How the participant is."""
        rows = self._looks.rows(facts.health(self._config), again=RENEWS not in asked.query)
        rows.append({"state": "ok", "of": "version", "found": f"veilsum {installed_version()}", "what to do": ""})
        return asked.render("health.html.j2", rows=rows)

    def settings(self, asked: PageRequest) -> Response:
        """The configuration, to read."""
        rows = setting_rows(read_participant_settings(self._path), self._path)
        return asked.render("values.html.j2", rows=rows, path=self._path)

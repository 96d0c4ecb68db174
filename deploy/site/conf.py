"""How Sphinx makes the site of `make docs`: the pages as they are in the repository, and the API from its docstrings.

Pages are CommonMark as a forge shows it, so none has a directive of Sphinx in it; what only the site needs is added here.
Whatever Sphinx warns of fails the build: a page that no list has, a link or heading that is not there, a name in a docstring.
"""

import sys
from html import escape
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.nodes import make_refnode

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
MERMAID = ROOT / ".tools" / "docs" / "mermaid.min.js"
sys.path[:0] = [
    str(HERE),
    *(str(ROOT / part) for part in ("proto", "node", "privacy", "aggregation", "participant", "coordinator", "deploy")),
]

import command_line  # noqa: E402

from veilsum_proto import SOFTWARE  # noqa: E402

NAVIGATION: dict[str, list[str]] = {
    "Start": ["docs/first-study", "docs/api", "docs/r", "deploy/site/api", "docs/scientist", "docs/glossary"],
    "Methods": ["docs/statistics", "docs/papers", "docs/methods", "docs/results"],
    "Hospitals": [
        "docs/deployment/hospital",
        "docs/deployment/sources",
        "docs/deployment/systemd",
        "docs/deployment/compose",
        "docs/deployment/kubernetes",
        "docs/deployment/troubleshooting",
        "docs/moving",
        "docs/support",
    ],
    "Privacy officers": ["docs/privacy-officer", "docs/console", "docs/ledger", "docs/data-protection"],
    "Operators": [
        "docs/deployment/operator",
        "docs/deployment/logins",
        "docs/dashboards",
        "docs/metrics",
        "docs/runbooks/README",
        "docs/upgrading",
    ],
    "Trust": [
        "SECURITY",
        "docs/threat-model",
        "docs/guard",
        "docs/secure-sum",
        "docs/reliability",
        "docs/performance",
        "docs/dependencies",
    ],
    "Reference": ["deploy/site/commands", "docs/files", "CHANGELOG"],
    "Developers": [
        "docs/architecture",
        "docs/states",
        "docs/adding",
        "docs/decisions/README",
        "CONTRIBUTING",
        "RELEASE",
        "CODE_OF_CONDUCT",
    ],
}
"""The pages in the order in which the site lists them; runbooks and decisions stand below their README."""

project = "veilsum"
author = "the veilsum authors"
copyright = author  # noqa: A001
version = release = SOFTWARE.partition(" ")[2]

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "README"
include_patterns = ["*.md", "docs/**", "deploy/site/*.md"]
exclude_patterns = [".*", "**/__pycache__"]
source_suffix = {".md": "markdown"}
myst_heading_anchors = 6
nitpicky = True
nitpick_ignore_regex = [  # types in signatures: of other packages, and of modules that are not public
    ("py:.*", r"(?!veilsum\.[A-Z]).+\..+"),
    ("py:class", "DatasetSchema|Path|Personal|Question|StudyInfo|StudyRequest"),
]

autodoc_typehints = "signature"
autodoc_class_signature = "separated"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "exclude-members": "__init__, __new__"}
python_use_unqualified_type_names = True

html_theme = "furo"
html_title = f"{project} {release}"
html_extra_path = ["index.html"]
html_static_path = [str(MERMAID)] if MERMAID.exists() else []
html_show_sphinx = False
html_copy_source = False


def complete_page(app: Sphinx, name: str, content: list[str]) -> None:
    """Append what no forge would show: lists of pages, and the commands."""
    if name == "deploy/site/commands":
        content[0] += f"\n\n{command_line.markdown()}\n"
    groups: dict[str, list[str]] = {}
    if name == root_doc:
        groups = NAVIGATION
    elif name in {"docs/decisions/README", "docs/runbooks/README"}:
        folder = ROOT / Path(name).parent
        groups = {"": sorted(file.stem for file in folder.glob("*.md") if file.stem != "README")}
    for caption, pages in groups.items():
        option = f":caption: {caption}\n" if caption else ""
        places = "\n".join(f"/{page}" if "/" in page or name == root_doc else page for page in pages)
        content[0] += f"\n\n```{{toctree}}\n:hidden:\n{option}\n{places}\n```\n"


def draw_diagrams(app: Sphinx, tree: nodes.document) -> None:
    """Let the reader's browser draw a page's diagrams, by a script that the site carries."""
    for block in list(tree.findall(lambda node: isinstance(node, nodes.literal_block) and node.get("language") == "mermaid")):
        if not MERMAID.exists():
            block["language"] = "text"
            continue
        block.replace_self(nodes.raw("", f'<pre class="mermaid">{escape(block.astext())}</pre>', format="html"))


def add_script(app: Sphinx, page: str, template: str, context: dict[str, Any], tree: nodes.document | None) -> None:
    if 'class="mermaid"' in context.get("body", ""):
        app.add_js_file("mermaid.min.js")
        app.add_js_file(None, body="mermaid.initialize({startOnLoad: true, securityLevel: 'strict'})")


def find_by_last_name(app: Sphinx, env: BuildEnvironment, node: pending_xref, content: nodes.TextElement) -> nodes.Node | None:
    """Link what a docstring calls by its bare name, such as an error, to where it is described."""
    name = node.get("reftarget", "")
    if node.get("refdomain") != "py" or "." in name:
        return None
    found = [
        entry for full, entry in env.domains.python_domain.objects.items() if full.endswith(f".{name}") and not entry.aliased
    ]
    if len(found) != 1:
        return None
    return make_refnode(app.builder, node["refdoc"], found[0].docname, found[0].node_id, [content])


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", complete_page)
    app.connect("doctree-read", draw_diagrams)
    app.connect("missing-reference", find_by_last_name)
    app.connect("html-page-context", add_script)

"""A hook of MkDocs: the documents at the repository's root, the examples and openapi.yaml are part of the site too.

Their links are written for whoever reads them in the repository, and are rewritten here for the site.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = {
    "README.md": "index.md",
    **{name: name for name in ("ARCHITECTURE.md", "SECURITY.md", "CONTRIBUTING.md", "CHANGELOG.md")},
}
"""File at the root -> page of the site."""


def on_files(files: Any, config: Any) -> Any:
    """Add what lies outside of `docs/`."""
    for name, page in DOCUMENTS.items():
        files.append(File.generated(config, page, content=(ROOT / name).read_text()))
    examples = sorted(
        path
        for kind in ("*.ipynb", "*_*.py")
        for path in (ROOT / "examples").rglob(kind)
        if path.stem != "jupyterhub_config"
    )
    others = [*examples, ROOT / "LICENSE", ROOT / "benchmarks" / "results.json"]
    for path in others:
        files.append(File.generated(config, str(path.relative_to(ROOT)), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links out of `docs/` (`../SECURITY.md`) and into it (`docs/cells.md`) lead to the pages of the site."""
    up = "../" * page.file.src_uri.count("/")
    markdown = re.sub(rf"\]\({re.escape(up)}\.\./(?=[\w.])", f"]({up}", markdown)
    markdown = re.sub(r"\]\(docs/", "](", markdown)
    markdown = re.sub(r'((?:src|srcset)=")docs/', r"\1", markdown)
    return re.sub(r"\]\(((?:\.\./)*)README\.md", r"](\1index.md", markdown)

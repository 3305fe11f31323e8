"""``glob``."""

from __future__ import annotations

import posixpath
from unicodedata import normalize

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moryflow_builtins.search import glob, grep
from moryflow_builtins.search.bodies import split
from moryflow_sdk import ToolError

TREE = {
    "a.md": "", "b.txt": "", ".hidden.md": "", "src/c.md": "", "src/deep/d.md": "", "src/deep/e.py": "", "src/[x].py": "",
    ".gitignore": "*.log\n", "x.log": "", ".git/HEAD": "", ".agent-output/o.md": "",
}  # fmt: skip


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*.md", [".hidden.md", "a.md"]),
        ("**/*.md", [".hidden.md", "a.md", "src/c.md", "src/deep/d.md"]),
        ("src/**", ["src/[x].py", "src/c.md", "src/deep/d.md", "src/deep/e.py"]),
        ("src/*/*.{py,md}", ["src/deep/d.md", "src/deep/e.py"]),
        ("a.md", ["a.md"]),
        ("src/deep/d.md", ["src/deep/d.md"]),
        ("?.txt", ["b.txt"]),
        ("[ab].*", ["a.md", "b.txt"]),
        ("src/\\[x\\].py", ["src/[x].py"]),
        ("src/*/../*.md", ["src/c.md"]),
        ("*.log", []),
        ("**/HEAD", []),
        (".agent-output*/**", []),
        ("{BASE}/src/*.md", ["{BASE}/src/c.md"]),
    ],
)
async def test_files_are_found_by_name(toolbox, pattern: str, expected: list[str]) -> None:
    """``*`` stops at a slash; ignored files, the repository and stored outputs are left out (S2.13, D36)."""
    toolbox.fill(TREE)
    base = str(toolbox.vault)
    output = (await toolbox.arun(glob, pattern=pattern.replace("{BASE}", base))).output
    lines = [line for line in output.splitlines() if not line.startswith("[") or line.startswith("[x")]
    assert lines == ([item.replace("{BASE}", base) for item in expected] or ["no match"])


async def test_a_name_is_found_however_its_accents_are_composed(toolbox) -> None:
    """A model writes one form and the disk may hold the other (S2.13)."""
    toolbox.fill({normalize("NFD", "é/café.md"): "needle\n"})
    for name in (normalize("NFC", "caf*é.md"), normalize("NFD", "caf*é.md")):
        assert (await toolbox.arun(glob, pattern=f"**/{name}")).metadata["files"] == 1
        assert (await toolbox.arun(grep, pattern="needle", glob=name)).metadata["matches"] == 1


@pytest.mark.parametrize(
    ("pattern", "path", "text"),
    [
        ("../**/*.txt", ".", "fs:{BASE}"),
        ("*/../../**", ".", "fs:{BASE}"),
        ("**/../../x", ".", "fs:{BASE}"),
        ("..", ".", "fs:{BASE}"),
        ("/etc/*.conf", ".", "fs:/etc"),
        ("~/*", ".", "fs:{BASE}/home"),
        ("/*", ".", "fs:/"),
        ("*", "../x", "fs:{BASE}/x"),
        ("a/../*.md", ".", "vault:/"),
        ("src/*", ".", "vault:/src"),
        ("x", "src", "vault:/src"),
        ("", "src", "vault:/"),
    ],
)
def test_a_pattern_is_judged_as_the_folder_it_reaches(toolbox, pattern: str, path: str, text: str) -> None:
    """``..`` counts wherever it stands (D3, R20)."""
    targets = toolbox.call(glob, {"pattern": pattern, "path": path}).targets
    assert [target.text for target in targets] == [text.replace("{BASE}", str(toolbox.vault.parent))]
    assert {target.domain for target in targets} == {"read"}


@pytest.mark.parametrize(
    "pattern", ["{../**,x}/*", "{..,src}/*", "{/etc,src}/*", "{~/x,src}/*", "{a,{b,src/..}}/*", "{a,b/../c}"]
)
def test_an_alternative_that_leads_elsewhere_is_refused(toolbox, pattern: str) -> None:
    """Nobody would have been asked about it, and its half of the answer was missing without a word (D3, S2.13)."""
    with pytest.raises(ToolError, match="leads out") as caught:
        toolbox.call(glob, {"pattern": pattern})
    assert caught.value.code == "invalid_pattern"
    assert [target.text for target in toolbox.call(glob, {"pattern": "{src,..a}/{b..c,d}.md"}).targets] == ["vault:/"]


@given(st.lists(st.sampled_from(["..", ".", "*", "**", "a", "{a,b}", "", "~"]), max_size=6).map("/".join))
def test_nothing_behind_the_folder_leads_out_of_it(pattern: str) -> None:
    """What is looked for below the judged folder holds no way up (D3)."""
    folder, rest = split(pattern, ".")
    assert ".." not in rest.split("/")
    assert "*" not in folder
    assert posixpath.normpath(folder) == folder or folder == "//"


async def test_a_long_list_is_cut_and_an_empty_one_helps(toolbox) -> None:
    """The next step is in the result (S2.13)."""
    toolbox.fill({f"d/{n}.py": "" for n in range(20)})
    result = await toolbox.arun(glob, pattern="d/*", limit=3)
    assert result.output.splitlines() == ["d/0.py", "d/1.py", "d/10.py", "[3 of 20 files; narrow the pattern]"]
    assert len((await toolbox.arun(glob, pattern="d/*")).output.splitlines()) == 20
    assert "**/*.py looks in all folders" in (await toolbox.arun(glob, pattern="*.py")).output
    with pytest.raises(ToolError):
        await toolbox.arun(glob, pattern="none/*")
    with pytest.raises(ToolError) as caught:
        await toolbox.arun(glob, pattern="{a,b}" * 12)
    assert caught.value.code == "invalid_pattern"


async def test_a_line_end_in_a_name_is_no_other_result(toolbox) -> None:
    """Whoever names a file cannot make up another, nor a line of one; `grep` only names such a file (S2.13)."""
    toolbox.fill({"a\nfake.py:1:needle": "needle", "b": "needle"})
    name = "a\\nfake.py:1:needle"
    assert (await toolbox.arun(glob, pattern="*")).output.split("\n") == [name, "b"]
    note = f"[not searched, a line end is in the name: {name}]"
    lines = ["b:1:needle", note]
    assert (await toolbox.arun(grep, pattern="needle")).output.split("\n") == lines
    lines = ["b (1)", note]
    assert (await toolbox.arun(grep, pattern="needle", files_only=True)).output.split("\n") == lines


async def test_no_match_names_the_ignored_files_that_do(toolbox) -> None:
    """Also below an ignored folder and with a line end in the name; files of secrets are not named (S2.13, D3)."""
    toolbox.fill(
        {".gitignore": "scripts/*\n.env\nvenv\n", "scripts/w\n.py": "", "venv/lib/x.py": "", ".env": "", ".git/a.py": ""}
    )
    said = "[ignored files, which were left out, match: "
    assert (await toolbox.arun(glob, pattern="**/*.py")).output == f"no match\n{said}scripts/w\\n.py, venv/lib/x.py]"
    assert (await toolbox.arun(glob, pattern="scripts/*")).output.split("\n")[1] == f"{said}scripts/w\\n.py]"
    assert (await toolbox.arun(glob, pattern="**/.env")).output == "no match"

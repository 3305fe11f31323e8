"""The schema of a bank. Imported only by ``check`` and ``doctor``."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from .structure import Page
from .template import SECTIONS

Said = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


def _complete(sections: list[str]) -> list[str]:
    missing = [name for name in SECTIONS if name not in sections]
    if missing:
        raise ValueError(f"section {missing[0]!r} is missing")
    order = [name for name in sections if name in SECTIONS]
    if order != list(SECTIONS):
        raise ValueError(f"the sections stand in another order than {', '.join(SECTIONS)}")
    return sections


class Front(BaseModel):
    """Front matter of MEMORY.md: which protocol and which template it was made for."""

    model_config = ConfigDict(extra="allow")

    protocol_version: Literal["memory-bank/v1"]
    template: Annotated[str, StringConstraints(pattern=r"^7\.\d+$")]
    pointers: list[Said] = []


class DetailsFront(BaseModel):
    """Front matter of any other file; it may name the sources it speaks of."""

    model_config = ConfigDict(extra="allow")

    pointers: list[Said] = []


class Route(BaseModel):
    """A routing rule: what one wants to do, and where to look then."""

    intent: Said
    files: Annotated[list[Said], Field(min_length=1)]


class FrontPage(BaseModel):
    """MEMORY.md."""

    front: Front
    title: Said
    sections: Annotated[list[str], AfterValidator(_complete)]
    routes: Annotated[list[Route], Field(min_length=1)]


class Details(BaseModel):
    """Any other file."""

    front: DetailsFront = DetailsFront()
    title: Said


def schema_problems(page: Page, *, front_page: bool) -> list[tuple[str, int]]:
    """Return what the schema refuses about a page, each with its line."""
    routes = [{"intent": intent, "files": files} for intent, files, _ in page.routes]
    value: dict[str, Any] = {"title": page.title, "front": page.front or {}}
    if front_page:
        value |= {"sections": [text for level, text, _ in page.headings if level == 2], "routes": routes}
    try:
        (FrontPage if front_page else Details).model_validate(value)
    except ValidationError as error:
        return [
            (f"{'.'.join(map(str, item['loc']))}: {_plain(item['msg'])}", _line(page, item["loc"])) for item in error.errors()
        ]
    return []


def _plain(message: str) -> str:
    return message.removeprefix("Value error, ")


def _line(page: Page, place: tuple[int | str, ...]) -> int:
    match place:
        case ("routes", int(index), *_):
            return page.routes[index][2]
        case ("routes", *_):
            return next((number for _, text, number in page.headings if text == "Routing Rules"), 1)
        case _:
            return 1

"""A tool that answers SQL about a CSV file.

Models add up badly, SQLite does not. The file is a target of the call, so your rules for files apply, and the tool opens
exactly the file that was judged.

Try it: ``moryflow tool run csv_query --path sales.csv --sql "select city, sum(amount) from data group by city"``.
"""

from __future__ import annotations

import csv
import sqlite3
from typing import Annotated

from moryflow_sdk import Tool, ToolContext, ToolError, file_target, hookimpl, tool

services = ["files"]
MAX_ROWS = 200


@tool(domain="read", targets=lambda args: file_target(args["path"]), parallel_safe=True)
def csv_query(
    path: Annotated[str, "A CSV file whose first line names the columns"],
    sql: Annotated[str, "One SELECT; the table is called data"],
    context: ToolContext,
) -> list[dict[str, object]]:
    """Ask a CSV file something in SQL."""
    text = context.files.read(context.call.targets[0]).decode("utf-8-sig")
    names, *rows = csv.reader(text.splitlines())
    columns = ", ".join('"{}" numeric'.format(name.replace('"', "")) for name in names)
    with sqlite3.connect(":memory:") as database:
        database.execute(f"create table data ({columns})")
        database.executemany(f"insert into data values ({', '.join('?' * len(names))})", rows)
        database.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)  # no other file
        try:
            found = database.execute(sql)
        except sqlite3.Error as error:
            raise ToolError(
                f"SQLite says: {error}", code="invalid_args", next_step=f"the columns are {', '.join(names)}"
            ) from error
        heads = [head[0] for head in found.description or ()]
        return [dict(zip(heads, row, strict=True)) for row in found.fetchmany(MAX_ROWS)]


@hookimpl
def tools() -> list[Tool]:
    """Offer the tool."""
    return [csv_query]

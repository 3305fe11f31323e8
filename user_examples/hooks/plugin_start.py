"""Keep a file open for as long as the plugin is loaded."""

from __future__ import annotations

from collections.abc import Callable

from moryflow_sdk import PluginContext, hookimpl


@hookimpl
def plugin_start(ctx: PluginContext) -> Callable[[], None]:
    """Open it in the plugin's own folder, and return what closes it: it is called when the last turn has ended."""
    diary = (ctx.data_dir / "diary.txt").open("a", encoding="utf-8")
    diary.write("opened\n")

    def close() -> None:
        diary.write("closed\n")
        diary.close()

    return close

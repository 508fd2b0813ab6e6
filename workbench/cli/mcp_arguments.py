"""What is wrong with the arguments of a tool, in the sentences of the command line."""

# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUntypedBaseClass=false

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

from workbench.describe.other_names import unknown_option
from workbench.errors import UnknownNameError

_TYPES = {
    "string": "a text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "array": 'a list of words, such as ["--model", "llama-3-8b"]',
}
_NAMES = {"run", "runs", "script"}
"""Arguments that a command takes by their place, where an option would be read as one."""


class PlainServer(MCPServer[Any]):
    """A server whose refusals are sentences: what was given, and what is allowed."""

    async def call_tool(self, name: str, arguments: dict[str, Any], context: Any = None) -> Any:
        """As usual.

        Raises:
            ToolError: there is no such tool or argument, one is missing or of another type, or the
                tool refuses.
        """
        tools = {tool.name: tool.input_schema for tool in await self.list_tools()}
        if name not in tools:
            raise ToolError(str(UnknownNameError.near("tool", name, tools)))
        properties: dict[str, Any] = tools[name].get("properties", {})
        for argument, value in arguments.items():
            if not properties:
                raise ToolError(f"{name} takes no arguments. {argument!r} was given.")
            if argument not in properties:
                raise ToolError(
                    str(unknown_option(f"argument of {name}", argument, list(properties)))
                )
            if argument in {"run", "runs"} and "/" in str(value):
                raise ToolError(f"{argument} is {value!r}: give ids of this store's runs.")
            if argument in _NAMES and any(word.startswith("-") for word in _words(value)):
                raise ToolError(f"{argument} is {value!r}: it cannot be an option.")
        try:
            return await super().call_tool(name, arguments, context)
        except ToolError as error:
            wrong = getattr(error.__cause__, "errors", None)
            if wrong is None:
                message = str(error).removeprefix(f"Error executing tool {name}: ")
                raise ToolError(message) from error
            place = str(wrong()[0]["loc"][0])
            raise ToolError(_sentence(name, place, arguments, properties.get(place, {}))) from error


def _words(value: object) -> list[str]:
    """A text, or the texts of a list."""
    return [str(word) for word in (value if isinstance(value, list) else [value])]


def _sentence(tool: str, name: str, arguments: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    allowed = [alternative.get("type") for alternative in schema.get("anyOf", [schema])]
    kinds = " or ".join(_TYPES[kind] for kind in allowed if kind in _TYPES)
    if name not in arguments:
        return f"{tool} needs {name}: {kinds}."
    return f"{name} of {tool} must be {kinds}, not {arguments[name]!r}."

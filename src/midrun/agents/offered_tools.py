"""The tools that a model is told of in one call: conditions, and tools that it has to find.

`tool(when=…)` has a function that decides before each model call whether the tool is offered.
`Agent(deferred_tools=[…])` has tools that are offered once the model has found them with the
built-in tool `search_tools`: an agent with hundreds of tools need not send all of their schemas
with every step.

Nothing of this needs an entry of its own. The journal has each call that the model asked for,
and each refusal of one that was not offered, so no later attempt asks a condition again. The
tools that were found follow from the results of `search_tools` in the conversation.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from midrun.agents.signature import CallFunction, FunctionFailed
from midrun.agents.tool import Tool, tool
from midrun.agents.tool_context import Call
from midrun.codec.safe_repr import safe_repr
from midrun.core.transcript import Turn
from midrun.core.values import Json
from midrun.errors import Misconfigured

SEARCH_NAME: Final = "search_tools"
"""The built-in tool that finds deferred tools."""

FOUND_MAX: Final = 8
"""The tools that one search returns."""

LISTED_NAMES_MAX: Final = 50
"""The names of deferred tools in the description of `search_tools`."""

NAME_WEIGHT: Final = 3
"""A word in the name of a tool counts as much as this many words in its description."""

_WORD: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[0-9]+|[^\W\d_A-Za-z]+")


class OfferedTools:
    """Decides which tools of an agent are offered in a model call.

    Args:
        tools: All tools of the agent, by name.
        deferred: Those that are offered once they were found, and the tool that finds them.

    Raises:
        Misconfigured: The `when` of a tool cannot be called.
    """

    def __init__(self, tools: Mapping[str, Tool], deferred: Iterable[Tool]) -> None:
        self._conditions = {
            each.name: CallFunction(f"tool {each.name}", "when", each.when)
            for each in tools.values()
            if each.when is not None
        }
        self._deferred = frozenset(each.name for each in deferred) - {SEARCH_NAME}
        # Whether all tools are offered in every model call.
        self.are_fixed: Final = not (self._conditions or self._deferred)
        self.takes_call: Final = any(c.takes_call for c in self._conditions.values())

    async def find_refused(self, call: Call | None) -> frozenset[str]:
        """Return the tools whose condition does not hold: a call of them is refused.

        Raises:
            FunctionFailed: A condition raised, or did not return True or False.
        """
        refused = set()
        for name, condition in self._conditions.items():
            if not await check_condition(condition, call):
                refused.add(name)
        return frozenset(refused)

    def find_unfound(self, transcript: Sequence[Turn]) -> frozenset[str]:
        """Return the deferred tools that no search has found yet."""
        if not self._deferred:
            return self._deferred
        made = (use for turn in transcript for use in turn.uses if use.tool == SEARCH_NAME)
        return self._deferred.difference(*(_list_found_names(use.result) for use in made))


async def check_condition(condition: CallFunction, call: Call | None) -> bool:
    """Ask the condition of a tool.

    Raises:
        FunctionFailed: It raised, or did not return True or False. In particular, None from a
            forgotten `return` must not hide a tool.
    """
    offered = await condition.apply(call)
    if not isinstance(offered, bool):
        text = f"{condition.label} must return True or False, got {safe_repr(offered, 80)}"
        raise FunctionFailed(text)
    return offered


def make_search_tool(deferred: Sequence[Tool]) -> Tool:
    """Return the tool `search_tools`, which finds tools among `deferred` by words."""
    conditions = {
        each.name: CallFunction(f"tool {each.name}", "when", each.when)
        for each in deferred
        if each.when is not None
    }

    async def search_tools(call: Call, query: str) -> dict[str, Json]:
        found: list[Json] = []
        for each in rank_tools(deferred, query):
            condition = conditions.get(each.name)
            if condition is None or await check_condition(condition, call):
                found.append({"name": each.name, "description": each.description})
        if found:
            return {"found": found[:FOUND_MAX]}
        names: list[Json] = [each.name for each in deferred[:LISTED_NAMES_MAX]]
        return {"found": [], "names": names}

    names = ", ".join(each.name for each in deferred[:LISTED_NAMES_MAX])
    more = "" if len(deferred) <= LISTED_NAMES_MAX else " and others"
    search_tools.__doc__ = f"""Find further tools; you can call those that it finds.

    They are: {names}{more}.

    Args:
        query: Words from the name or the description of the tools.
    """
    return tool(search_tools, read_only=True, title="Find tools for “{query}”")


def rank_tools(tools: Sequence[Tool], query: str) -> list[Tool]:
    """Return the tools that have a word of `query`, those with the most words first."""
    wanted = _list_words(query)

    def score(each: Tool) -> int:
        name, text = _list_words(each.name), _list_words(each.description)
        return NAME_WEIGHT * len(wanted & name) + len(wanted & text)

    scores = {each.name: score(each) for each in tools}
    matching = [each for each in tools if scores[each.name]]
    return sorted(matching, key=lambda each: -scores[each.name])  # stable: else as declared


def _list_words(text: str) -> set[str]:
    """Return the words of a text or a name, in lower case and without a plural s."""
    words = (word.lower() for word in _WORD.findall(text))
    return {word.removesuffix("s") if len(word) > 3 else word for word in words}  # noqa: PLR2004 - "bus"


def _list_found_names(result: Json) -> set[str]:
    found = result.get("found") if isinstance(result, dict) else None
    items = found if isinstance(found, list) else []
    return {str(item["name"]) for item in items if isinstance(item, dict) and "name" in item}


def declare_deferred(agent: str, tools: object) -> tuple[Tool, ...]:
    """Return the deferred tools of an agent, and the tool that finds them.

    Raises:
        Misconfigured: They are not a list of tools or functions.
    """
    if isinstance(tools, str) or not isinstance(tools, Sequence):
        problem = f"deferred_tools must be a list of tools, got {safe_repr(tools, 80)}"
        raise Misconfigured(f"agent {agent}", problem)
    deferred = tuple(map(Tool.of, tools))
    return (*deferred, make_search_tool(deferred)) if deferred else ()

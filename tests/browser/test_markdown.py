"""The agent's text is Markdown: what it becomes, while it arrives and when it is hostile."""

import itertools
from typing import Final

import pytest
from playwright.async_api import Page, expect

from tests.browser.harness import (
    Harness,
    discard_profile,
    find_dark_violations,
    find_violations,
)
from tests.browser.run_page import open_run_page
from tests.browser.stage import Hold, Stage, Turn

pytestmark = pytest.mark.once

BRIEFING: Final = """# Churn in Q3

It rose, **mostly** where the *champion* left; see `seats.py` and <https://example.com/q3>.

1. Ask [sales](https://example.com/sales "Sales")
2. Write:
   - the memo
   - [x] the table

| account | seats | cut |
|:--------|------:|:---:|
| Acme    |   120 | 50% |
| Bo & Co |     7 | `a|b` |

> A quote with
> two lines.

```python
print("<b>hi</b>")  # **not** bold
```

---

snake_case_name and 2 * 3 * 4 stay, \\*so\\* does <b>this</b>."""

RENDER: Final = """async ([texts, isOpen]) => {
  await import("/static/markdown-text.js");
  const draw = (node) =>
    [...node.childNodes]
      .map((one) => {
        if (one.nodeType === Node.TEXT_NODE) return one.data;
        const inside = draw(one);
        const tag = one.localName;
        if (["div", "button", "span"].includes(tag) && !one.className) return inside;
        if (one.className === "blocks" || one.className === "code-head") return inside;
        const href = one.getAttribute("href") ? ` ${one.getAttribute("href")}` : "";
        return `<${tag}${href}>${inside}</${tag}>`;
      })
      .join("");
  return texts.map((text) => {
    const made = document.createElement("midrun-text");
    made.content = {text, isOpen};
    const buttons = made.shadowRoot.querySelectorAll(".code-head");
    for (const one of buttons) one.replaceChildren();
    return draw(made.shadowRoot);
  });
}"""

STREAM: Final = """async (text) => {
  await import("/static/markdown-text.js");
  const element = () => document.createElement("midrun-text");
  const whole = element();
  whole.content = {text};
  const grown = element();
  document.body.append(grown);
  const blocks = () => [...grown.shadowRoot.querySelector(".blocks").children];
  let rebuilt = 0;
  let before = [];
  for (let end = 1; end <= text.length; end++) {
    grown.content = {text: text.slice(0, end), isOpen: true};
    const now = blocks();
    rebuilt += before.slice(0, -1).filter((node, at) => node !== now[at]).length;
    before = now;
  }
  grown.content = {text};
  const shown = (one) => {
    const copy = one.shadowRoot.querySelector(".blocks");
    return copy.outerHTML;
  };
  return {isSame: shown(whole) === shown(grown), rebuilt};
}"""

TIME: Final = """async ([text, pieces]) => {
  await import("/static/markdown-text.js");
  const made = document.createElement("midrun-text");
  document.body.append(made);
  const start = performance.now();
  for (let at = 1; at <= pieces; at++) {
    const end = Math.floor((text.length * at) / pieces);
    made.content = {text: text.slice(0, end), isOpen: at < pieces};
  }
  const spent = performance.now() - start;
  const depth = (node) =>
    1 + [...node.children].reduce((most, child) => Math.max(most, depth(child)), 0);
  const result = {spent, depth: depth(made.shadowRoot.querySelector(".blocks"))};
  made.remove();
  return result;
}"""

RENDERED: Final = {
    "plain\nnext": "<p>plain\nnext</p>",
    "## Two ##": "<h3>Two</h3>",
    "## A\n# B\n## C\n## D": "<h3>A</h3><h3>B</h3><h4>C</h4><h4>D</h4>",
    "#no": "<p>#no</p>",
    "**a *b* c**": "<p><strong>a <em>b</em> c</strong></p>",
    "***a***": "<p><em><strong>a</strong></em></p>",
    "**a": "<p>**a</p>",
    "a_b_c __d__": "<p>a_b_c <strong>d</strong></p>",
    "2 * 3 * 4": "<p>2 * 3 * 4</p>",
    "~~gone~~ ~x~": "<p><s>gone</s> ~x~</p>",
    "`a*b*` ``c`d``": "<p><code>a*b*</code> <code>c`d</code></p>",
    "`open": "<p>`open</p>",
    "*a [b* c](https://x.example)": "<p><em>a [b</em> c](<a https://x.example/>"
    "https://x.example</a>)</p>",
    "[a](https://x.example/a_(b))": "<p><a https://x.example/a_(b)>a</a></p>",
    "see https://x.example/a.": "<p>see <a https://x.example/a>https://x.example/a</a>.</p>",
    "![cat](https://x.example/c.png)": "<p>Picture: <a https://x.example/c.png>cat</a></p>",
    "[x](javascript:alert(1))": "<p>[x](javascript:alert(1))</p>",
    "[x](data:text/html,hi)": "<p>[x](data:text/html,hi)</p>",
    "[x](/v1/runs) [y](#token=t)": "<p>[x](/v1/runs) [y](#token=t)</p>",
    "[x](https://bank.example@evil.example/)": "<p>[x](https://bank.example@evil.example/)</p>",
    "[https://bank.example](https://evil.example)": "<p><a https://evil.example/>"
    "https://bank.example</a> (evil.example)</p>",
    "<img src=x onerror=alert(1)>": "<p><img src=x onerror=alert(1)></p>",
    "- a\n- b\n  - c\n\n- d": "<ul><li><p>a</p></li><li><p>b</p><ul><li><p>c</p></li></ul></li>"
    "<li><p>d</p></li></ul>",
    "3. a\n4. b": "<ol><li><p>a</p></li><li><p>b</p></li></ol>",
    "- [ ] a\n- [x] b": "<ul><li><p>☐ a</p></li><li><p>☑ b</p></li></ul>",
    "> a\n> > b": "<blockquote><p>a</p><blockquote><p>b</p></blockquote></blockquote>",
    "a\n\n***\n\nb": "<p>a</p><hr></hr><p>b</p>",
    "```\n<b>\n```\nafter": "<div><pre><code><b></code></pre></div><p>after</p>",
    "```\nopen": "<div><pre><code>open</code></pre></div>",
    "|a|b|\n|-|-:|\n|1|2|3|": "<div><table><thead><tr><th>a</th><th>b</th></tr></thead>"
    "<tbody><tr><td>1</td><td>2</td></tr></tbody></table></div>",
    "| no table |": "<p>| no table |</p>",
    "in 1984. It\n2024. was": "<p>in 1984. It\n2024. was</p>",
}

ARRIVING: Final = {
    "a **bo": "<p>a <strong>bo</strong></p>",
    "a `co": "<p>a <code>co</code></p>",
    "see [the list](https://exa": "<p>see the list</p>",
    "| a | b": "<div><table><thead><tr><th>a</th><th>b</th></tr></thead>"
    "<tbody></tbody></table></div>",
    "| a | b |\n|--": "<div><table><thead><tr><th>a</th><th>b</th></tr></thead>"
    "<tbody></tbody></table></div>",
}

SIZE: Final = 1_000_000

HOSTILE: Final = {
    "quotes": ">" * SIZE,
    "lists": "- " * (SIZE // 2),
    "asterisks": "*a " * (SIZE // 3),
    "strong": "**a *b " * (SIZE // 7),
    "closers": "*a **b " * 5000 + "a** b* " * 5000,
    "brackets": "[" * 100_000 + "](" * 50_000,
    "links": "[a](b" * (SIZE // 5),
    "backticks": "".join("`" * (n % 900) + " " for n in range(2200)),
    "table": "|a" * 400 + "\n" + "|-" * 400 + "\n" + ("|x" * 400 + "\n") * 300,
    "one line": "a" * SIZE,
    "lines": "a\n" * (SIZE // 2),
    "urls": "https://" * (SIZE // 8),
    "bars": "|\n" * (SIZE // 4),
    "underscores": "_a" * (SIZE // 2),
    "code": "`a` " * 49_000,
    "headings": "# a\n" * 20_000,
    "tildes": "~" * SIZE + "`",
}

BUDGET_MS: Final = 20_000
"""A text of a megabyte that took quadratic time would take many minutes."""

DEPTH_MAX: Final = 70


async def open_list(harness: Harness, stage: Stage) -> Page:
    """Open a page of the server, for its modules."""
    page = await harness.page(await harness.site(stage.play("Done.")))
    await expect(page.get_by_text("No runs yet.")).to_be_visible()
    return page


async def test_markdown_becomes_nodes_and_everything_else_stays_text(
    harness: Harness, stage: Stage
) -> None:
    """Unsafe addresses and HTML are shown as they were written."""
    page = await open_list(harness, stage)
    shown = await page.evaluate(RENDER, [list(RENDERED), False])
    assert dict(zip(RENDERED, shown, strict=True)) == RENDERED
    shown = await page.evaluate(RENDER, [list(ARRIVING), True])
    assert dict(zip(ARRIVING, shown, strict=True)) == ARRIVING


async def test_a_text_that_arrives_letter_by_letter_ends_as_if_it_came_at_once(
    harness: Harness, stage: Stage
) -> None:
    """Only the last block is made anew: a selection in the others stays."""
    page = await open_list(harness, stage)
    assert await page.evaluate(STREAM, BRIEFING) == {"isSame": True, "rebuilt": 0}


@pytest.mark.parametrize("name", HOSTILE)
async def test_a_hostile_text_costs_linear_time_and_shallow_nodes(
    harness: Harness, stage: Stage, name: str
) -> None:
    """At once, and in pieces as a model streams it."""
    page = await open_list(harness, stage)
    for pieces in (1, 10):
        result = await page.evaluate(TIME, [HOSTILE[name], pieces])
        assert result["spent"] < BUDGET_MS
        assert result["depth"] <= DEPTH_MAX


async def test_what_the_agent_says_is_rendered_while_it_says_it(
    harness: Harness, stage: Stage
) -> None:
    """Headings, a table, code with a copy button; the same when it is finished."""
    cut = BRIEFING.index("print") + 3
    turn: Turn = [BRIEFING[:cut], Hold("mid"), BRIEFING[cut:]]
    ui = await open_run_page(harness, stage, turn, bypass_csp=True)
    await stage.start("mid").wait()
    steps = ui.page.locator("midrun-steps")
    await expect(steps.get_by_role("heading", name="Churn in Q3")).to_be_visible()
    await expect(steps.get_by_role("cell", name="Bo & Co")).to_be_visible()
    await expect(steps.locator("pre")).to_have_text("pri")
    stage.gate("mid").set()
    await ui.expect_badge("Completed")
    result = ui.page.get_by_role("region", name="Result")
    await expect(result.locator("pre")).to_have_text('print("<b>hi</b>")  # **not** bold')
    link = result.get_by_role("link", name="sales")
    await expect(link).to_have_attribute("rel", "noopener noreferrer nofollow")
    await expect(link).to_have_attribute("target", "_blank")
    assert await find_violations(ui.page) == []
    assert await find_dark_violations(ui.page) == []


async def test_the_end_of_a_text_that_arrives_is_marked_once(
    harness: Harness, stage: Stage
) -> None:
    """In a list, each item has blocks of its own: only the last block of all is marked."""
    turn: Turn = ["1. One\n   - two\n\n   three\n2. > four\n   - five", Hold("mid")]
    ui = await open_run_page(harness, stage, turn)
    await stage.start("mid").wait()
    end = ui.page.locator("midrun-steps p", has_text="five")
    await expect(end).to_be_visible()
    marked = await ui.page.locator("midrun-steps p").evaluate_all(
        "all => all.filter(p => getComputedStyle(p, '::after').content !== 'none')"
        ".map(p => p.textContent)"
    )
    assert marked == ["five"]
    stage.gate("mid").set()


async def test_code_is_copied_as_it_is_shown(harness: Harness, stage: Stage) -> None:
    """A character that cannot be seen would not be noticed before it is pasted."""
    ui = await open_run_page(harness, stage, "```sh\nls \u202e-la\n```")
    await ui.expect_badge("Completed")
    discard_profile(ui.page)
    await ui.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    await (
        ui.page.get_by_role("region", name="Result").get_by_role("button", name="Copy").click()
    )
    await expect(ui.button_named("Copied")).to_be_visible()
    assert await ui.page.evaluate("navigator.clipboard.readText()") == "ls ⟨U+202E⟩-la"


def test_the_cases_cover_each_kind_of_block() -> None:
    """A new kind of node needs a case."""
    tags = {"p", "h3", "ul", "ol", "li", "blockquote", "hr", "pre", "table", "a", "s", "em"}
    shown = "".join(itertools.chain(RENDERED.values(), ARRIVING.values()))
    assert all(f"<{tag}" in shown for tag in tags)

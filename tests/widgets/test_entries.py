"""What somebody types into a calculator stays while answers to earlier moves arrive."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.widgets.small_dom import on_page

_CONTROLS = """
const { Controls } = await import("./memory_fields.js");
const sent = [];
const controls = new Controls([{ title: "g", open: true, fields: [field] }], (name, value) => sent.push(value));
const inputs = controls.fields.get(field.name).row.children.filter((one) => one.tag === "input");
const show = (value, marks) => controls.show({ values: { [field.name]: value }, hidden: [], marks: { [field.name]: marks } }, {});
"""


@pytest.mark.parametrize(
    ("field", "entered"),
    [
        ({"name": "processes", "kind": "number"}, 16),
        ({"name": "name", "kind": "text"}, "16"),
        ({"name": "micro_batch", "kind": "slider", "marks": [8, 16, 32]}, 16),
        ({"name": "budget_usd", "kind": "limit"}, 16),
    ],
)
def test_an_answer_leaves_what_is_being_typed_alone(
    tmp_path: Path, field: dict[str, object], entered: object
) -> None:
    """ "16" became "86": the 8 of an earlier move was put back between two keys."""
    told = on_page(
        tmp_path,
        _CONTROLS
        + """
        const input = inputs.at(-1);
        show(8, [8]);
        input.type("1");
        show(8, [8]);
        const between = input.value;
        input.type(`${input.value}6`);
        input.leave();
        const after = input.value;
        show(4, [8]); // what Python makes of it
        tell({ between, after, sent, shown: input.value });""",
        field={**field, "label": "It"},
    )
    assert told == {"between": "1", "after": "16", "sent": [entered], "shown": "4"}


def test_a_field_in_focus_follows_and_an_entry_taken_back_shows_what_is_true(
    tmp_path: Path,
) -> None:
    told = on_page(
        tmp_path,
        _CONTROLS
        + """
        const [input] = inputs;
        show(8);
        input.focus();
        show(4);
        const inFocus = input.value;
        input.type("");
        show(2);
        document.activeElement = null;
        input.emit("blur"); // the same text as at the beginning: a browser tells of no change
        tell([inFocus, input.value, sent]);""",
        field={"name": "processes", "label": "Processes", "kind": "number"},
    )
    assert told == ["4", "2", []]


def test_a_dragged_slider_keeps_its_marks_until_it_is_let_go(tmp_path: Path) -> None:
    told = on_page(
        tmp_path,
        _CONTROLS
        + """
        const [range, exact] = inputs;
        show(null, [1, 2, 3, 4]);
        range.emit("pointerdown");
        range.value = "2";
        range.emit("input");
        show(3, [3, 6]); // a search has ended
        const held = [range.value, range.max];
        range.value = "1";
        range.emit("input");
        page.emit("pointerup");
        const released = [range.value, range.max];
        range.emit("pointerdown");
        show(2, [2, 3]); // the answer to the last move
        page.emit("pointerup");
        tell({ held, sent, released, answered: [range.value, range.max] });""",
        field={"name": "budget_usd", "label": "Budget", "kind": "limit"},
    )
    assert told["held"] == ["2", "4"]
    assert told["sent"] == [3, 2]
    assert told["released"] == ["1", "4"]
    assert told["answered"] == ["0", "2"]

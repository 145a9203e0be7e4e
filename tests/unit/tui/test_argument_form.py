"""The form in which a person edits the arguments of a call, field by field."""

import pytest

from midrun.core.values import Json
from midrun.tui.argument_form import ArgumentForm

MAIL: dict[str, Json] = {
    "to": ["ada", "bo"],
    "options": {"urgent": True, "copies": 2, "note": None},
    "rows": [{"name": "a", "price": 1.5}],
    "body": "Dear Ada,\nhello",
}


def enter_all(args: Json, **texts: str) -> Json:
    """Enter these texts by label, and leave the other fields as they are."""
    form = ArgumentForm.open(args)
    left = {name.replace("__", ", ").replace("_", " "): text for name, text in texts.items()}
    while not form.is_complete:
        form = form.enter(left.pop(form.current.label, form.current.text))
    assert not left
    return form.build_arguments()


def test_each_value_inside_of_objects_and_lists_is_a_field_without_json() -> None:
    form = ArgumentForm.open(MAIL)
    assert {field.label: field.text for field in form.fields} == {
        "to, item 1": "ada",
        "to, item 2": "bo",
        "to, one more": "",
        "options, urgent": "yes",
        "options, copies": "2",
        "options, note": "",
        "rows, item 1, name": "a",
        "rows, item 1, price": "1.5",
        "body": "Dear Ada,\\nhello",
    }
    assert enter_all(MAIL) == MAIL


def test_items_are_changed_removed_and_added() -> None:
    assert enter_all({"to": ["ada", "bo", "cy"]}, to__item_1="", to__item_3="di") == {
        "to": ["bo", "di"]
    }
    form = ArgumentForm.open({"to": [1, 2], "then": "x"})
    for text in ("1", "2", "3", "4", "", "x"):
        form = form.enter(text)
    assert form.is_complete
    assert form.build_arguments() == {"to": [1, 2, 3, 4], "then": "x"}
    assert ArgumentForm.open({"to": []}).enter("ada").build_arguments() == {"to": ["ada"]}


def test_a_value_keeps_its_type() -> None:
    changed = enter_all(
        MAIL, options__urgent="no", options__copies="3", options__note="now", body='A "b"\\nc'
    )
    assert isinstance(changed, dict)
    assert changed["options"] == {"urgent": False, "copies": 3, "note": "now"}
    assert changed["body"] == 'A "b"\nc'
    assert enter_all({"path": r"C:\new"}, path=r"C:\old") == {"path": r"C:\old"}


@pytest.mark.parametrize(
    ("args", "text", "problem"),
    [
        ({"copies": 2}, "two", "it is not a number. Type digits"),
        ({"copies": 2}, "[]", "it is not a number"),
        ({"copies": 2}, "", "it is not a number"),
        ({"urgent": True}, "maybe", "Type yes or no."),
        ({"body": "a\nb"}, "a\\x", "an escape is not complete"),
    ],
)
def test_a_text_that_does_not_fit_is_refused_with_the_reason(
    args: Json, text: str, problem: str
) -> None:
    with pytest.raises(ValueError, match="Cannot use") as refused:
        ArgumentForm.open(args).enter(text)
    assert problem in str(refused.value)


def test_hidden_characters_are_shown_and_kept() -> None:
    form = ArgumentForm.open({"to": "a\u202eb"})
    assert form.current.text == "a\\u202eb"
    assert enter_all({"to": "a\u202eb"}) == {"to": "a\u202eb"}


def test_arguments_without_a_value_have_no_fields() -> None:
    assert ArgumentForm.open({}).fields == ()
    assert ArgumentForm.open({"options": {}}).fields == ()
    assert ArgumentForm.open(None).fields == ()

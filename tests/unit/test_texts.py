"""Texts of people that others see in a terminal."""

from __future__ import annotations

from jupyter_elastic.types.texts import has_control, visible

BIDI = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
"""Unicode's property Bidi_Control, whole."""


def test_every_character_that_changes_the_direction_of_writing_is_written_out() -> None:
    for mark in BIDI:
        assert has_control(f"a{mark}b"), ascii(mark)
        for lines in (False, True):
            assert visible(f"a{mark}b", lines=lines) == f"a\\u{ord(mark):04x}b"


def test_letters_of_all_scripts_stay() -> None:
    text = "Zürich, \u05e9\u05dc\u05d5\u05dd, \u0645\u0631\u062d\u0628\u0627, \u65e5\u672c, e\u0301, \U0001f600"
    assert not has_control(text)
    assert visible(text) == visible(text, lines=True) == text

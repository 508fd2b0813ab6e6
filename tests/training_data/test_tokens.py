"""What the model will see: tokens, the label mask, and the figures of an epoch."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.training_data.tiny import CHATML, MARKED, STRICT, chat, tokenizer_folder, write_lines
from workbench.training_data import (
    Encoder,
    TokenOptions,
    examine,
    load_tokenizer,
    token_report,
)
from workbench.training_data.messages import turns_of
from workbench.training_data.values import Example, RowError, Turn

TURNS = (
    Turn(role="user", content="one?"),
    Turn(role="assistant", content="One."),
    Turn(role="user", content="two?"),
    Turn(role="assistant", content="Two."),
)
THINKING = (  # as Qwen3's: earlier answers lose what the last one has
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['role'] == 'assistant' and loop.last %}<think>\n\n</think>\n\n{% endif %}"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


ENDED_ONCE = (  # as Phi-3's: a mark that is only an added token, and the end of all behind the last
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    "<|endoftext|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% else %}{{ eos_token }}{% endif %}"
)
CALLING = THINKING.replace(  # a call stands behind the content, and tools before the conversation
    "<|im_end|>\n{% endfor %}",
    "{% if message['tool_calls'] %}<call>{{ message['tool_calls'] | tojson }}</call>{% endif %}"
    "<|im_end|>\n{% endfor %}",
)
EITHER = (
    "{% if call.function.arguments is string %}{{ call.function.arguments }}"
    "{% else %}{{ call.function.arguments | tojson }}{% endif %}"
)
CALL: dict[str, Any] = {"tool_calls": [{"function": {"name": "weather", "arguments": {}}}]}
CALLED = (
    Turn(role="user", content="weather?"),
    Turn(role="assistant", content="", extra=CALL),
    Turn(role="tool", content="rain"),
    Turn(role="assistant", content="Rain."),
)


def learned(
    folder: Path, own: str | None, turns: tuple[Turn, ...] = TURNS, **how: Any
) -> list[str]:
    """The stretches that are learned of the conversation."""
    tokenizer = load_tokenizer(tokenizer_folder(folder, template=own))
    encoder = Encoder(tokenizer, "messages", **how)
    encoded = encoder.encode(Example(turns=turns))
    shown = encoder.shown(encoded)
    assert len(encoded.ids) == len(encoded.learned)
    return [text for text, is_learned in shown if is_learned]


@pytest.mark.parametrize(
    ("own", "how", "expected"),
    [
        (CHATML, {}, ["One.<|im_end|>", "Two.<|im_end|>"]),
        (MARKED, {}, ["One.<|im_end|>", "Two.<|im_end|>"]),
        (THINKING, {}, ["One.<|im_end|>", "<think>\n\n</think>\n\nTwo.<|im_end|>"]),
        (ENDED_ONCE, {}, ["One.<|endoftext|>", "Two.<|endoftext|>\n<|im_end|>"]),
        (STRICT, {}, [" One.<|im_end|>", " Two.<|im_end|>"]),
        (None, {"template": "chatml"}, ["One.<|im_end|>", "Two.<|im_end|>"]),
        (None, {"template": "plain"}, ["One.<|im_end|>", "Two.<|im_end|>"]),
        (None, {"template": "zephyr"}, ["One.<|im_end|>", "Two.<|im_end|>"]),
        (None, {"template": "llama-3"}, ["One.<|eot_id|>", "Two.<|eot_id|>"]),
        (None, {"template": "alpaca"}, ["One.<|im_end|>", "Two.<|im_end|>"]),
    ],
)
def test_answers_with_their_end_mark_are_learned_and_nothing_else(
    own: str | None, how: dict[str, Any], expected: list[str], tmp_path: Path
) -> None:
    assert learned(tmp_path, own, **how) == expected


@pytest.mark.parametrize("said", ["", "I look."])
@pytest.mark.parametrize("thought", ["<think>\n\n</think>\n\n", "<think>I look.</think>"])
def test_a_tool_call_is_learned_with_its_end_mark(said: str, thought: str, tmp_path: Path) -> None:
    own = CALLING.replace("<think>\n\n</think>\n\n", thought)
    turns = (CALLED[0], replace(CALLED[1], content=said), *CALLED[2:])
    called, answered = learned(tmp_path, own, turns)
    assert called.startswith(f"{said}<call>[{{")
    assert called.endswith("</call><|im_end|>")
    assert answered == f"{thought}Rain.<|im_end|>"


def test_the_model_sees_the_tools_that_it_may_call(tmp_path: Path) -> None:
    own = "{% if tools %}{{ tools | tojson }}{% endif %}" + CALLING
    tool = {"type": "function", "function": {"name": "weather", "parameters": {}}}
    example = Example(turns=CALLED, tools=(tool,))
    encoder = Encoder(load_tokenizer(tokenizer_folder(tmp_path, template=own)), "messages")
    assert encoder.shown(encoder.encode(example))[0][0].startswith('[{"type": "function"')
    assert encoder.unused(example) == ()


@pytest.mark.parametrize("given", [{"city": "Oslo"}, '{"city": "Oslo"}'], ids=["object", "text"])
@pytest.mark.parametrize(
    "written",
    [
        "{{ call.function.arguments | tojson }}",
        "{{ call.function.arguments }}",  # of an object it would write Python's form
        "{{ '' + call.function.arguments }}",  # fails at an object
        EITHER,
    ],
)
def test_arguments_of_a_call_are_json_once(given: Any, written: str, tmp_path: Path) -> None:
    """APIs have them as JSON text, tables and other trainers as an object; templates want either."""
    loop = "{% for call in message['tool_calls'] %}<call>" + written + "</call>{% endfor %}"
    own = CALLING.replace("<call>{{ message['tool_calls'] | tojson }}</call>", loop)
    call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": given}}
    messages = [
        {"role": "user", "content": "weather?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
    ]
    turns = turns_of(messages, "messages")
    (called,) = learned(tmp_path, own, turns)
    assert '<call>{"city": "Oslo"}</call>' in called


def test_reasoning_is_learned_where_the_template_shows_it(tmp_path: Path) -> None:
    rows = [
        {"messages": [chat(1)["messages"][0], {**chat(1)["messages"][1], key: "1 + 1 = 2."}]}
        for key in ("reasoning_content", "thinking")
    ]
    report = examine(write_lines(tmp_path / "a.jsonl", rows))
    own = THINKING.replace("\n\n</think>", "\n{{ message['reasoning_content'] }}\n</think>")
    folder = tokenizer_folder(tmp_path / "model", template=own)
    counted = token_report(report, TokenOptions(model=str(folder)))
    texts = [text for text, learned in counted.first[0].parts if learned]
    assert texts == ["<think>\n1 + 1 = 2.\n</think>\n\n2 follows 1.<|im_end|>"]
    assert counted.notes == (
        "Not used: key 'thinking' of messages, which the template does not show (1 row).",
    )


def test_a_call_that_the_template_does_not_show_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RowError, match="does not show tool calls"):
        learned(tmp_path, CHATML, CALLED)


@pytest.mark.parametrize("said", ["", "I look."])
@pytest.mark.parametrize("how", [{}, {"learn_all": True}])
def test_a_call_that_the_template_shows_of_other_messages_only_is_refused(
    said: str, how: dict[str, Any], tmp_path: Path
) -> None:
    """As DeepSeek R1's: a call where there is no text, which transformers cannot say with null."""
    own = CALLING.replace("{% if message['tool_calls'] %}", "{% if message['content'] is none %}")
    turns = (CALLED[0], replace(CALLED[1], content=said), *CALLED[2:])
    with pytest.raises(RowError, match="does not show the tool calls of message 2"):
        learned(tmp_path, own, turns, **how)
    pair = Example(turns=turns[:2], rejected=turns[3:], prompt_turns=1)
    encoder = Encoder(load_tokenizer(tokenizer_folder(tmp_path, template=own)), "preference")
    with pytest.raises(RowError, match="does not show the tool calls"):
        encoder.pair(pair)


@pytest.mark.parametrize(
    ("thought", "expected"),
    [("hm", "hm\n</think>\n\nOne.<|im_end|>"), ("", "One.<|im_end|>")],
)
def test_a_thought_is_learned_where_the_prompt_has_an_empty_one(
    thought: str, expected: str, tmp_path: Path
) -> None:
    """As Qwen3.5's template without thinking."""
    inside = "<think>\n{{ message['reasoning_content'] }}\n</think>\n\n"
    own = CHATML.replace(
        "{{ message['content'] }}",
        "{% if message['reasoning_content'] %}" + inside + "{% endif %}{{ message['content'] }}",
    ).replace("assistant\n{% endif %}", "assistant\n<think>\n\n</think>\n\n{% endif %}")
    answer = replace(TURNS[1], extra={"reasoning_content": thought} if thought else None)
    assert learned(tmp_path, own, (TURNS[0], answer)) == [expected]


def test_a_template_that_marks_nothing_of_a_row_is_refused(tmp_path: Path) -> None:
    own = MARKED.replace("{{ message['content'] }}<|im_end|>{% endgeneration %}", "") + (
        "{% generation %}{% endgeneration %}"
    )
    own = own.replace("{% generation %}{% else %}", "{{ message['content'] }}{% else %}")
    with pytest.raises(RowError, match="nothing to learn from"):
        learned(tmp_path, own)


def test_a_token_without_an_embedding_breaks_its_row_alone(tmp_path: Path) -> None:
    """As Gemma 3 1B's mark of pictures, of which the tokenizer has one more than the model."""
    about = {"model_type": "llama", "vocab_size": 259}
    folder = tokenizer_folder(tmp_path, pad=None)
    (folder / "config.json").write_text(json.dumps(about))
    encoder = Encoder(load_tokenizer(folder), "messages")
    assert encoder.encode(Example(turns=TURNS)).ids
    turns = (replace(TURNS[0], content="see <|pad|>"), *TURNS[1:])
    with pytest.raises(RowError, match=r"no embedding for its token '<\|pad\|>'"):
        encoder.encode(Example(turns=turns))
    pair = Example(turns=turns, rejected=(Turn(role="assistant", content="No."),), prompt_turns=3)
    with pytest.raises(RowError, match="no embedding"):
        encoder.pair(pair)


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        (STRICT, [" s<|im_end|>", " i<|im_end|>"]),  # letters of "[assistant]"
        (  # the turn ends otherwise where it is the last, and its thought has its letters
            THINKING.replace("and loop.last", "").replace(
                "<think>\n\n</think>\n\n",
                "<think>is</think>{% if loop.last %}<|endoftext|>{% endif %}",
            ),
            ["<think>is</think>s<|im_end|>", "<think>is</think><|endoftext|>i<|im_end|>"],
        ),
    ],
)
def test_an_answer_is_not_looked_for_in_what_the_template_writes(
    own: str, expected: list[str], tmp_path: Path
) -> None:
    turns = tuple(replace(turn, content=text) for turn, text in zip(TURNS, "asbi", strict=True))
    assert learned(tmp_path, own, turns) == expected


@pytest.mark.parametrize("own", [CHATML, MARKED, THINKING])
def test_an_answer_with_the_weight_0_is_only_read(own: str, tmp_path: Path) -> None:
    turns = (TURNS[0], replace(TURNS[1], learned=False), *TURNS[2:])
    (answer,) = learned(tmp_path, own, turns)
    assert answer.endswith("Two.<|im_end|>")
    assert "One." not in answer
    every = learned(tmp_path, own, turns, learn_all=True)
    assert "".join(every).count("One.") == 0
    assert every[0].startswith("<|im_start|>user\none?<|im_end|>")
    assert every[0].endswith("<|im_start|>assistant\n")


def test_everything_can_be_learned(tmp_path: Path) -> None:
    (text,) = learned(tmp_path, CHATML, learn_all=True)
    assert text.startswith("<|im_start|>user\none?<|im_end|>")


def test_raw_text_is_learned_with_its_end(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(tokenizer_folder(tmp_path))
    encoded = Encoder(tokenizer, "text").encode(Example(text="ab"))
    assert tokenizer.decode(encoded.ids) == "ab<|im_end|>"
    assert all(encoded.learned)


def test_a_preference_is_a_prompt_and_two_ends(tmp_path: Path) -> None:
    encoder = Encoder(load_tokenizer(tokenizer_folder(tmp_path)), "preference")
    rejected = (Turn(role="assistant", content="No."),)
    pair = encoder.pair(Example(turns=TURNS, rejected=rejected, prompt_turns=3))
    (prompt, _), (chosen, _) = encoder.shown(pair.chosen)
    assert prompt.endswith(
        "One.<|im_end|>\n<|im_start|>user\ntwo?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert chosen == "Two.<|im_end|>"  # what stands behind is written by the template
    assert encoder.shown(pair.rejected) == [(prompt, False), ("No.<|im_end|>", True)]


def test_a_token_over_the_end_of_the_prompt_belongs_to_both_answers(tmp_path: Path) -> None:
    own = CHATML.replace("}}\n{{", "}}:{{").replace("assistant\n", "assistant:")
    folder = tokenizer_folder(tmp_path, template=own)
    made = json.loads((folder / "tokenizer.json").read_text())
    made["model"]["vocab"][":T"] = made["model"]["vocab"].pop("ÿ")
    made["model"]["merges"] = [[":", "T"]]
    (folder / "tokenizer.json").write_text(json.dumps(made))
    encoder = Encoder(load_tokenizer(folder), "preference")
    rejected = (Turn(role="assistant", content="No."),)
    pair = encoder.pair(Example(turns=TURNS[2:], rejected=rejected, prompt_turns=1))
    (prompt, _), chosen = encoder.shown(pair.chosen)
    assert prompt.endswith("<|im_start|>assistant")
    assert chosen == (":Two.<|im_end|>", True)
    assert encoder.shown(pair.rejected) == [(prompt, False), (":No.<|im_end|>", True)]


def test_the_figures_of_an_epoch_follow_from_the_lengths(tmp_path: Path) -> None:
    folder = tokenizer_folder(tmp_path / "model")
    rows = [{"text": "x" * length} for length in (9, 19, 29, 39, 99)]  # and an end mark each
    report = examine(write_lines(tmp_path / "a.jsonl", rows))
    options = TokenOptions(model=str(folder), seq_len=50, micro_batch=5, global_batch=2)
    counted = token_report(report, options)
    assert (counted.median, counted.longest, counted.counted) == (30, 100, 5)
    assert counted.truncated_share == pytest.approx(1 / 5)
    assert counted.cut_share == pytest.approx(50 / 200)
    assert counted.epoch_tokens == 10 + 20 + 30 + 40 + 50
    assert counted.padding_share == pytest.approx(1 - 150 / 250)
    assert counted.epoch_steps == 3
    assert counted.epoch_steps_packed == 2  # 50, 40 + 10, 30 + 20
    assert counted.packing_gain == pytest.approx(250 / 150)
    assert counted.learned_share == 1.0


def test_a_pair_is_two_sequences_that_are_never_packed(tmp_path: Path) -> None:
    folder = tokenizer_folder(tmp_path / "model")
    rows = [{"prompt": "one?", "chosen": "Two.", "rejected": "Not two."}] * 3
    report = examine(write_lines(tmp_path / "a.jsonl", rows))
    options = TokenOptions(model=str(folder), micro_batch=2)
    counted = token_report(report, options)
    shown = counted.first[0]
    assert [text for text, learned in shown.parts if learned] == ["Two.<|im_end|>"]
    assert shown.rejected == "Not two.<|im_end|>"
    assert (counted.counted, shown.tokens) == (3, counted.longest + counted.longest - 4)
    assert counted.epoch_tokens == 3 * shown.tokens
    assert (counted.epoch_steps, counted.epoch_steps_packed, counted.packing_gain) == (2, 2, 1.0)
    assert counted.padding_share == pytest.approx(1 - shown.tokens / (2 * counted.longest))


def test_an_answer_behind_the_end_of_the_sequence_is_told_as_lost(tmp_path: Path) -> None:
    folder = tokenizer_folder(tmp_path / "model")
    report = examine(write_lines(tmp_path / "a.jsonl", [chat(1), chat(2)]))
    counted = token_report(report, TokenOptions(model=str(folder), seq_len=8))
    assert counted.lost_share == 1.0

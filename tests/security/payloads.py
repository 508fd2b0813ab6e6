"""Texts that a shell, a parser, a page or a terminal would obey if they were let."""

from __future__ import annotations

CANARY = "canary-was-touched"
_COMMANDS = [
    "; touch {c}",
    "&& touch {c}",
    "|| touch {c}",
    "| touch {c}",
    "& touch {c} &",
    "$(touch {c})",
    "`touch {c}`",
    "${{IFS}}$(touch {c})",
    "'; touch {c}; '",
    '"; touch {c}; "',
    "\\'; touch {c} #",
    '\\"; touch {c} #',
    "$'\\n'touch {c}",
    "\ntouch {c}\n",
    "\r\ntouch {c}",
    "\nEND\ntouch {c}\n",
    "<(touch {c})",
    ">(touch {c})",
    "> {c}",
    ">> {c}",
    "$((a[$(touch {c})]))",
    "{{touch,{c}}}",
    "!touch {c}",
    "*;touch {c}",
    "~;touch {c}",
    "#;\ntouch {c}",
    "--help; touch {c}",
    "-rf; touch {c}",
    "a\tb;touch {c}",
    '"""+__import__("os").system("touch {c}")+"""',
    "{{__import__('os').system('touch {c}')}}",
    "!!python/object/apply:os.system ['touch {c}']",
]
SHELL = [text.format(c=CANARY) for text in _COMMANDS]

MARKUP = [
    "<img src=x onerror=\"document.title='pwned'\">",
    "</script><script>document.title='pwned'</script>",
    "</style><svg onload=\"document.title='pwned'\">",
    '"><iframe srcdoc="<script>parent.document.title=\'pwned\'</script>">',
    "<a href=\"javascript:document.title='pwned'\">x</a>",
    "<b>bold</b>&lt;i&gt;",
    "[link=https://evil.example]x[/link] [bold red]y",
    "${document.title='pwned'}",
]

# A string that a store's file may hold: half a surrogate pair, NUL, terminal commands, hidden text.
TERMINAL = [
    "\x1b]52;c;ZXZpbA==\x07",
    "\x1b]8;;https://evil.example\x1b\\here\x1b]8;;\x1b\\",
    "\x1b[2J\x1b[H\x1b[31mred",
    "\x1bPq#0;2;0;0;0#0~~\x1b\\",
    "\x9b31m\x9d52;c;ZXZpbA==\x9c",
    "abc\x08\x08\x08xyz\x07\x00",
    "\u202egnp.exe",
    "a\u200bb\u2066c\u2069\ufeff",
]

TOKENS = {
    "HF_TOKEN": "hf_" + "Abcdefgh1234" * 3,
    "OPENAI_API_KEY": "sk-proj-" + "aB3dEfGh1jKl" * 3,
    "GITHUB_TOKEN": "ghp_" + "0123456789abcdefABCD" * 2,
    "AWS_ACCESS_KEY_ID": "AKIA" + "ABCDEFGH12345678",
    "WANDB_API_KEY": "0123456789abcdef0123" * 2,
    "SLACK_TOKEN": "xoxb-" + "123456789012-abcdefghijkl",
    "RUNPOD_API_KEY": "rpa_" + "ABCDEFGHIJKLMNOPQRSTUVWXYZ12",
    "MY_SERVICE_PASSWORD": "correct-horse-battery",  # no shape: known by its variable alone
}

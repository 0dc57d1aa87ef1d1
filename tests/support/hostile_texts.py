"""Texts of strangers that try to be more than text on a page."""

from __future__ import annotations

HOSTILE = {
    "script": "<script>window.ran = 1</script>",
    "image": '<img src=x onerror="window.ran = 1">',
    "attribute": '" autofocus onfocus="window.ran = 1" x="',
    "single quotes": "' onmouseover='window.ran = 1' x='",
    "closing": "</code></td></table></main></textarea></title><h1 class=foreign>x</h1>",
    "unclosed": "<div class=foreign><!-- <style>body { display: none",
    "address": "javascript:window.ran=1",
    "template": "{{ 7 * 7 }}{% raw %}{{ cycler.__init__.__globals__ }}",
    "json": '{"a": [1, "\\u2028</script>"], \u2028\u2029}',
    "lines": "first\r\nsecond\n\n\tthird",
    "direction": "user\u202egnp.exe\u2066\u2067\u061c",
    "combining": "Z" + "\u0335\u0321\u0301" * 60,
    "emoji": "👩‍👩‍👧‍👦🏴󠁧󠁢󠁥󠁮󠁧󠁿",
    "one word": "w" * 600,
    "path": "../../%2e%2e/%00?x=1&y=2#z",
    "entity": "&lt;b&gt; &amp;amp; &#x3c;",
}
"""By what is odd about them. Whatever runs sets ``window.ran``; elements of theirs have the class
``foreign``."""

LONG = "<b>" + "long " * 13_107
"""64 KiB."""

SECRET_KEY, SECRET_VALUE = "zq7secretkey", "zq7secretvalue"

assert len(LONG) > 64 * 1024 - 8

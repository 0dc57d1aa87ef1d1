"""Dates, times, intervals and expressions over them that tests draw."""

from __future__ import annotations

import re
from datetime import datetime

from hypothesis import strategies as st


def _split(table: str) -> list[str]:
    return table.strip("\n").replace("\n", "|").split("|")


ZONES = _split(r"""
Europe/Zurich|America/New_York|Australia/Lord_Howe|europe/zurich|Asia/Kathmandu|America/Sao_Paulo
Pacific/Apia|UTC|EST|CET|cest|+02|-03:30|UTC+5|<+03>-3|Asia/Tokyo|Z|+02:30:15|Etc/GMT-3|nowhere|
12|+200|GMT
""")
MOMENTS = _split(r"""
2024-03-31 01:59:59.999999|2024-03-31 02:00:00|2024-03-31 02:30:00|2024-03-31 03:00
2024-10-27 02:00:00|2024-10-27 02:30:00.5|2024-10-27 03:00:00|2024-10-27 00:30|2024-03-10 02:30:00
2024-11-03 01:30:00|2024-11-03 06:00:00|2024-04-07 01:45:00|2024-10-06 02:15:00
2024-04-06 15:00:00|2011-12-30 12:00|2024-02-29 12:00:00.123456|2023-02-28 23:59:59.999999
2024-01-31 00:00:00|1999-12-31 23:59:59.5|2000-01-01|1970-01-01 00:00:00
1969-12-31 23:59:59.999999|0001-01-01 00:00:00|2024-12-30 08:07|9999-12-31 23:59:59.999999
2021-01-03 12:34:56.7|2000-12-31 11:00|1900-03-01 12:00
""")
SPANS = _split(r"""
1 month|-1 month|1 day|-1 day|1 hour|-1 hour 30 minutes|11 months 31 days
1 year 2 mons -3 days 04:05:06.789|-1 year +1 day -00:00:00.000001|0|13 months
29 days 23:59:59.999999|-30 days -24:00:00|1 month -30 days|100 years|0.000001 s|35 days 27:00
-45 days 1:30|15 minutes|1.5 s|7 days|1234 hours 5 minutes|1 mon -1 day +00:00:01
-14 months 40 days -50:00:00.25|178956970 years 7 mons|P1Y2DT3H|2147483647 days
9223372036854775807 us|-2562047788:00:54.775808|@ 3 weeks ago
""")
UNITS = _split(r"""
microseconds|milliseconds|second|minute|hour|day|week|month|quarter|year|decade|century|millennium
dow|isodow|doy|isoyear|julian|epoch|timezone|timezone_hour|timezone_minute|hours|mm|YEAR|Mon|us|ms
fortnight|d|h|qtr
""")
PICTURES = _split(r"""
YYYY-MM-DD HH24:MI:SS|DD Mon YYYY|FMDay, FMDDth FMMonth YYYY|HH12:MI:SS AM|HH:MI p.m.|MS US
FF1 FF2 FF3 FF4 FF5 FF6|IYYY-IW-ID|IDDD|DDD|Q|WW W|CC|J|RM|rm|FMRM|Y,YYY|YYY YY Y|IYY IY I|MONTH
Month|month|MON|mon|DAY|day|DY|Dy|dy|FMMONTH|TMMonth|TMDay|TMMon|FMHH24:FMMI|FMYYYY FMMM
DDTH DDth HH24th|SSSS|SSSSS|TZ tz|TZH:TZM|OF|FMOF|BC A.D. ad b.c.|a.m. A.M. pm|FXYYYY|D ID DTH
"in" YYYY "and \"so\" on"|\"YYYY\"|YYYY\\|T"T"HH24|yyyy-mm-dd|hh24:mi:ss.us|Yyyy|FM|tm|FMFM|QTH
YYYYth|WWth|Jth|CCth|MMth|ĀYYYYß|FMDDD FMIDDD|FMCC|FMY,YYY|FMMS|FMWW|DDsp|SP|MIth|HHTH
""")
READINGS = [
    (text, picture)
    for text, _, picture in (
        pair.partition(" => ")
        for pair in _split(r"""
2024-03-31 02:30:00 => YYYY-MM-DD HH24:MI:SS|31 Mar 2024 => DD Mon YYYY|20240331 => YYYYMMDD
20240331T023000 => YYYYMMDD"T"HH24MISS|2024 03 31 => YYYY-MM-DD|2024/3/1 => YYYY/MM/DD
2024-03-31 11:30 PM => YYYY-MM-DD HH:MI AM|2024-03-31 11:30 p.m. => YYYY-MM-DD HH12:MI a.m.
12:30 am 2024 => HH:MI am YYYY|March 5, 2024 => Month DD, YYYY|  2024  060 => YYYY DDD
2024-W10-3 => IYYY-"W"IW-ID|2024-05 => IYYY-IW|24-02-30 => YY-MM-DD|99 => YY|520 => YYY|5 => Y
2024-02-30 => YYYY-MM-DD|2023-02-29 => YYYY-MM-DD|2460400 => J|21 => CC
2024-03-31 02:30:00.5 => YYYY-MM-DD HH24:MI:SS.MS|2024 1.23456 => YYYY SS.US
2024 1.2345678 => YYYY SS.US|2024 1.999999 => YYYY SS.FF3|2024 1.5 => YYYY SS.FF1
2024-03-31 02:30 +05:30 => YYYY-MM-DD HH24:MI TZH:TZM|2024 -05 => YYYY TZH
2024-03-31 02:30:00-0330 => YYYY-MM-DD HH24:MI:SSTZHTZM|2024 +03:15 => YYYY OF
2024 3661 => YYYY SSSS|2024 99999 => YYYY SSSSS|5th March 2024 => DDth Month YYYY
Sunday 31 March 2024 => Day DD Month YYYY|IV 2024 => RM YYYY|xii2024 => rmYYYY|2,024 => Y,YYY
2024-4 => YYYY-Q|2024 10 => YYYY WW|2024 05 3 => YYYY MM W|2024--03 => YYYY-MM|2024-03 => YYYY--MM
2024 x03 => YYYY xMM|2024y03 => YYYY"y"MM|2024  03 => FXYYYY MM|2024-03 => FXYYYY MM
2024-13-01 => YYYY-MM-DD| => YYYY|2024-03-31 => |abc => YYYY|2024 => YYYY-MM-DD
2024-03-31 25:00 => YYYY-MM-DD HH24:MI|2024 2025 => YYYY YYYY|2024 2024 => YYYY YYYY
2024 12 1 => YYYY MM IW|0 => YYYY|20 24 => CC YY|2024 BC => YYYY BC|2024 AD => YYYY AD
13 PM 2024 => HH PM YYYY|2024 June 31 => YYYY Month DD|2024 366 => YYYY DDD|2023 366 => YYYY DDD
2024 060 02 => YYYY DDD MM|2024-366 => IYYY-IDDD|12024-01-01 => YYYY-MM-DD
2024-1-1 => FMYYYY-FMMM-FMDD|20241 => YYYYFMMM|2024 -1 => YYYY MM|2024 1e => YYYY MM
3 2024 => ID IYYY|2024 7 01 => IYYY ID IW|2024 Mars => YYYY Month|2024 mayday => YYYY Month
""")
    )
]
"""Texts, and pictures to read them by."""

_TOKENS = _split(r"""
day|days|mon|month|years|y|h|hr|m|min|s|sec|ms|us|week|w|mils|c|dec|qtr|d|ago|@|+|-|-1|1-2|-1-2|+3
2:03|-2:03:04|+1:02:03.5|12:34.5|1.5|.5|-.5|5.|,|1:|1d|2h3m|P|T|1Y|century|dow
""")
_KEYS = _split(r"""
YYYY|YYY|YY|Y|IYYY|IYY|IY|I|MM|MON|Mon|MONTH|Month|DD|DDD|D|DY|Day|W|WW|IW|Q|J|CC|HH|HH12|HH24|MI
SS|MS|US|FF1|FF3|FF6|SSSS|TZ|tz|AM|pm|a.m.|BC|b.c.|ad|TZH|TZM|OF|RM|rm|FX|FM|TM|th|TH|ID|IDDD
Y,YYY|-|/|:|.|T|1|\|x| | |-|"T"|"a b"|\"
""")
_WRITTEN = _split(r"""
 |-|/|:| |-|  |2024|24|1999|3|03|12|31|5|0|60|366|2460400|March|mar|Mar|IV|xii|Sunday|sun|AM|pm
a.m.|BC|AD|+05|-03:30|+5|EST|cest|utc|ESTx|MSK|1st|2nd|10:20:30|0.5|123456|x|T
""")


def _quoted(text: str) -> str:
    return f"'{text}'"


def _literal(kind: str, texts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return texts.map(lambda text: f"'{text}'::{kind}")


def _joined(parts: list[str], most: int, mark: str) -> st.SearchStrategy[str]:
    found = st.lists(st.sampled_from(parts), min_size=1, max_size=most)
    return found.map(mark.join).map(_quoted)


def _inserted(text: str, place: int, more: str) -> str:
    place %= len(text) + 1
    return text[:place] + more + text[place:]


_moments = st.one_of(
    st.sampled_from(MOMENTS),
    st.datetimes(datetime(1900, 1, 1), datetime(2100, 1, 1)).map(str),
    st.datetimes().map(str),
)
_moments_with_zone = st.one_of(
    _moments,
    st.builds("{} {}".format, _moments, st.sampled_from(["+02", "-05:30", "+00", "Z"])),
    st.builds("{} {}".format, st.sampled_from(MOMENTS), st.sampled_from(ZONES[:8])),
)
_whole = st.one_of(st.integers(-3, 40), st.integers(-3000, 3000))
_amounts = st.one_of(
    _whole.map(str),
    st.decimals(-1000, 1000, places=3).map(lambda value: format(value, "f")),
)
_units = _split("years|mons|days|hours|minutes|seconds|weeks|ms|us|decades|s|h")
_spans = st.one_of(
    st.sampled_from(SPANS),
    st.lists(
        st.builds("{} {}".format, _amounts, st.sampled_from(_units)), min_size=1, max_size=4
    ).map(" ".join),
    st.builds(
        "{}-{} {} {}:{:02}:{:02}.{}".format,
        _whole,
        st.integers(0, 12),
        _whole,
        _whole,
        st.integers(0, 60),
        st.integers(0, 61),
        st.integers(0, 9_999_999),
    ),
    st.builds("P{}Y{}M{}DT{}H{}M{}S".format, *[_amounts] * 6),
)
_tokens = st.one_of(_whole.map(str), _amounts, st.sampled_from(_TOKENS))
_token_spans = st.lists(
    st.builds("{}{}".format, _tokens, st.sampled_from([" ", " ", " ", ""])), min_size=1, max_size=6
).map("".join)
_garbled = st.builds(
    _inserted,
    st.one_of(_moments, _spans, _moments_with_zone),
    st.integers(0, 60),
    st.sampled_from([*" :-+.0159TZaPd,/@", "ago", " hours", "am", "--", "12"]),
)
_altered = st.builds(
    lambda pair, place, more, keys: f"'{_inserted(pair[0], place, more)}', '{pair[1]}{keys}'",
    st.sampled_from(READINGS),
    st.integers(0, 30),
    st.sampled_from(["", *" -/:.0159xT+,", "  "]),
    st.sampled_from(["", "", " ", "-DD", "MM", " MI", "th", "FX"]),
)
_floats = st.one_of(
    st.sampled_from(["0.1", "1.5", "-0.5", "3", "0", "1e-7", "7.333333", "1e10", "59.9999999"]),
    st.floats(-1e6, 1e6).map(repr),
    st.floats(-1e11, 1e11).map(repr),
)
_times = st.one_of(st.times().map(str), st.sampled_from(["00:00", "23:59:59.9"]))

VALUES: dict[str, st.SearchStrategy[str]] = {
    "timestamp": _literal("timestamp", _moments),
    "timestamptz": _literal("timestamptz", _moments_with_zone),
    "date": _literal("date", _moments.map(lambda text: text[:10])),
    "time": _literal("time", _times),
    "interval": _literal("interval", _spans),
    "tokens": _literal("interval", _token_spans),
    "garbled": _garbled.map(_quoted),
    "zone": st.sampled_from([*ZONES, ""]).map(_quoted),
    "unit": st.sampled_from(UNITS).map(_quoted),
    "picture": _joined(PICTURES, 2, "/"),
    "keys": _joined(_KEYS, 8, ""),
    "written": _joined(_WRITTEN, 8, ""),
    "reading": st.sampled_from(READINGS).map("', '".join).map(_quoted),
    "altered": _altered,
    "mixed": st.builds(
        "'{0[0]}', '{1[1]}'".format, st.sampled_from(READINGS), st.sampled_from(READINGS)
    ),
    "int": _whole.map("({})".format),
    "part": st.integers(-1, 62).map("({})".format),
    "year": st.one_of(st.integers(1, 9999), st.integers(-2, 2100)).map("({})".format),
    "float": _floats.map("('{}'::float8)".format),
    "digits": st.integers(0, 7).map(str),
    "compare": st.sampled_from(["=", "<>", "<", "<=", ">", ">="]),
    "null": st.sampled_from(["null", "null::timestamp"]),
}
"""By the names in `TEMPLATES`."""

TEMPLATES = _split(r"""
{timestamp} + {interval}|{timestamp} - {interval}|{interval} + {timestamp}
{timestamptz} + {interval}|{timestamptz} - {interval}|{interval} + {timestamptz}
{date} + {interval}|{date} - {interval}|{interval} + {date}|{date} + {int}|{int} + {date}
{date} - {int}|{date} - {date}|{date} + {time}|{time} + {date}|{time} + {interval}
{time} - {interval}|{interval} + {time}|{time} - {time}|{timestamp} - {timestamp}
{timestamptz} - {timestamptz}|{timestamptz} - {timestamp}|{date} - {timestamp}
{interval} + {interval}|{interval} - {interval}|- {interval}|{interval} * {float}
{float} * {interval}|{interval} / {float}|{interval} * {int}|{interval} / {int}
{timestamp} {compare} {timestamp}|{timestamptz} {compare} {timestamptz}
{interval} {compare} {interval}|{date} {compare} {date}|{time} {compare} {time}
{date} {compare} {timestamp}|{timestamp} {compare} {date}|{date} {compare} {timestamptz}
{timestamptz} {compare} {date}|{timestamp} {compare} {timestamptz}
{timestamptz} {compare} {timestamp}|{interval} = {interval} + {interval}
{timestamptz} at time zone {zone}|{timestamp} at time zone {zone}
timezone({interval}, {timestamptz})|timezone({interval}, {timestamp})
{timestamp} at time zone {zone} at time zone {zone}|timezone({timestamp})
date_add({timestamptz}, {interval}, {zone})|date_subtract({timestamptz}, {interval}, {zone})
date_add({timestamptz}, {interval})|date_subtract({timestamptz}, {interval})
extract({unit} from {timestamp})|extract({unit} from {timestamptz})|extract({unit} from {date})
extract({unit} from {time})|extract({unit} from {interval})|date_part({unit}, {timestamp})
date_part({unit}, {timestamptz})|date_part({unit}, {date})|date_part({unit}, {time})
date_part({unit}, {interval})|date_trunc({unit}, {timestamp})|date_trunc({unit}, {timestamptz})
date_trunc({unit}, {interval})|date_trunc({unit}, {timestamptz}, {zone})
date_trunc({unit}, {date})|date_bin({interval}, {timestamp}, {timestamp})
date_bin({interval}, {timestamptz}, {timestamptz})|age({timestamp}, {timestamp})
age({timestamptz}, {timestamptz})|age({date}, {date})|to_char({timestamp}, {picture})
to_char({timestamptz}, {picture})|to_char({interval}, {picture})|to_char({date}, {picture})
to_timestamp({reading})|to_date({reading})|to_timestamp({mixed})|to_date({mixed})
to_timestamp({float})|to_timestamp({altered})|to_date({altered})|to_timestamp({written}, {keys})
to_char({timestamp}, {keys})|to_char({timestamptz}, {keys})|to_char({interval}, {keys})|{tokens}
{tokens}|make_date({year}, {part}, {part})|make_time({part}, {part}, {float})
make_time({part}, {part}, 59.9999)|make_timestamp({year}, {part}, {part}, {part}, {part}, {float})
make_timestamp({year}, 2, {part}, 12, {part}, 1.5)|make_timestamptz({year}, 3, 31, 2, 30, {float})
make_timestamptz({year}, 3, 31, 2, 30, 1.25, {zone})|make_interval()|make_interval({int}, {int})
make_interval({int}, {int}, {int}, {int}, {int}, {int}, {float})|justify_days({interval})
justify_hours({interval})|justify_interval({interval})|isfinite({date})|isfinite({timestamp})
isfinite({timestamptz})|isfinite({interval})|{timestamp}::timestamptz|{timestamp}::date
{timestamp}::time|{timestamptz}::timestamp|{timestamptz}::date|{timestamptz}::time
{date}::timestamp|{date}::timestamptz|{time}::interval|{interval}::time|{date}::text
{timestamp}::text::timestamptz|{interval}::text::interval|{time}::text::time
{timestamp}::timestamp({digits})|{timestamptz}::timestamptz({digits})|{time}::time({digits})
{interval}::interval({digits})|{garbled}::timestamp|{garbled}::timestamptz|{garbled}::date
{garbled}::time|{garbled}::interval|{garbled}::interval|greatest({timestamp}, {timestamp})
least({interval}, {interval})|{timestamp} in ({timestamp}, {timestamp})
overlaps({timestamp}, {timestamp}, {timestamp}, {timestamp})
overlaps({timestamp}, {interval}, {timestamp}, {interval})
overlaps({time}, {time}, {time}, {interval})
overlaps({timestamptz}, {interval}, {timestamptz}, {timestamptz})
overlaps({timestamp}, {null}, {timestamp}, {timestamp})
overlaps({null}, {timestamp}, {timestamp}, {null})
overlaps({timestamp}, {timestamp}, {null}, {timestamp})
{timestamp} between {timestamp} and {timestamp}|case when {date} < {timestamp} then {interval} end
coalesce({timestamptz}, {timestamp})|{date} is distinct from {date}
""")
_PIECES = [
    [(n % 2 == 1, piece) for n, piece in enumerate(re.split(r"\{(\w+)\}", template))]
    for template in TEMPLATES
]


@st.composite
def expressions(draw: st.DrawFn) -> str:
    """An expression over random values."""
    pieces = draw(st.sampled_from(_PIECES))
    return "".join(draw(VALUES[piece]) if is_value else piece for is_value, piece in pieces)

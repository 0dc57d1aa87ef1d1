"""`to_char` and `to_number` of numbers, by pictures."""

from __future__ import annotations

from decimal import Decimal

from millwheel.sql.functions.numbers.decimals import ONE, WIDE, nearest, numeric, quotient, rounded
from millwheel.sql.functions.numbers.number_pictures import AFTER, BEFORE, Picture, picture
from millwheel.sql.functions.registry import ValueRefused, implements

_ROMAN = (
    (1000, "M"), (900, "CM"), (500, "D"), (400, "CD"), (100, "C"), (90, "XC"), (50, "L"),
    (40, "XL"), (10, "X"), (9, "IX"), (5, "V"), (4, "IV"), (1, "I"),
)  # fmt: skip
_ROMAN_WIDTH, _MOST_ROMAN = 15, 3999
_ORDINALS = {"1": "ST", "2": "ND", "3": "RD"}
_FLOAT_DIGITS = {"float4": 6, "float8": 15}


class _Writer:
    """Writes one number.

    Args:
        of: the picture.
        number: the digits, with a point if there are digits after it.
        sign: ``+`` or ``-``.
        post: digits after the point.
    """

    def __init__(self, of: Picture, number: str, sign: str, post: int) -> None:
        self._of, self._sign, self._post = of, sign, post
        self._has = has = of.has
        before = len(number.partition(".")[0])
        self._spaces = max(of.pre - before, 0)
        if before > of.pre:
            number = f"{'#' * of.pre}.{'#' * post}"
        self._number = number
        self._fill = "FM" in has
        self._bracket = "PR" in has
        self._place = of.sign
        self._zero = "0" in has
        self._zero_start = max(of.zero_start - 1, 0)
        if has & {"PL", "MI"}:
            self._signed = not ("PL" in has and "MI" not in has)
        else:
            if sign != "-" and self._fill:
                self._bracket = False
            self._signed = sign == "+" and self._fill and "S" not in has
            if self._place == BEFORE and of.pre == of.digits_at_sign:
                self._place = AFTER
        self._count = post + of.pre - 1 + (not self._signed and not self._spaces)
        self._last = self._last_relevant() if self._fill and "." in has else None
        self._ends_at_point = self._last is not None and number[self._last] == "."
        self._inside = False
        self._current = self._at = 0
        self._out: list[str] = []

    def _last_relevant(self) -> int | None:
        """The place of the last digit that is written; None: all are."""
        point = self._number.find(".")
        if point < 0:
            return None
        last = max(point, len(self._number.rstrip("0")) - 1)
        if self._of.zero_end > self._spaces:
            last = max(last, min(len(self._number) - 1, self._of.zero_end - self._spaces))
        return last

    def written(self) -> str:
        for pattern, text in self._of.nodes:
            if text:
                self._out.append(text)
            elif pattern in ("9", "0", ".", "D"):
                self._digit(pattern)
            else:
                self._out.append(self._other(pattern))
        return "".join(self._out).partition("\0")[0]

    def _other(self, pattern: str) -> str:
        sign, blank = self._sign, "" if self._fill else " "
        if pattern in (",", "G"):
            return "," if self._inside else blank
        if pattern == "MI":
            return "-" if sign == "-" else blank
        if pattern == "PL":
            return "+" if sign == "+" else blank
        if pattern == "SG":
            return sign
        if pattern.upper() == "TH" and sign != "-" and "." not in self._has:
            found = _ordinal(self._number)
            return found if pattern == "TH" else found.lower()
        return ""

    def _is_blank(self) -> bool:
        """Whether this is the zero of a number like 0.1, which is not written."""
        return not self._zero and not self._at and self._number[0] == "0" and self._post != 0

    def _digit(self, pattern: str) -> None:
        self._inside = False
        if (
            not self._signed
            and (self._current >= self._spaces or self._starts_with_zero())
            and (not self._is_blank() or self._ends_at_point)
        ):
            self._write_sign()
        if self._current >= self._spaces:
            self._write_digit(pattern)
        elif self._zero and self._zero_start <= self._current:
            self._out.append("0")
            self._inside = True
        elif not self._fill:
            self._out.append(" ")
        end = self._count + bool(self._spaces) + ("." in self._has)
        if self._last is not None and self._last == self._at:
            end = self._current
        if self._current + 1 == end:
            self._write_end()
        self._current += 1

    def _starts_with_zero(self) -> bool:
        return self._zero and self._zero_start == self._current

    def _write_sign(self) -> None:
        if "S" in self._has:
            if self._place != BEFORE:
                return
            self._out.append(self._sign)
        elif self._bracket:
            self._out.append(" " if self._sign == "+" else "<")
        elif self._sign == "-":
            self._out.append("-")
        elif not self._fill:
            self._out.append(" ")
        self._signed = True

    def _write_end(self) -> None:
        if self._signed and self._bracket:
            self._out.append(" " if self._sign == "+" else ">")
        elif "S" in self._has and self._place == AFTER:
            self._out.append(self._sign)

    def _write_digit(self, pattern: str) -> None:
        # Where a picture has more digits than a float, Postgres' text ends.
        here = self._number[self._at] if self._at < len(self._number) else "\0"
        if here == ".":
            if not self._ends_at_point or self._fill:
                self._out.append(".")
        elif self._last is None or self._at <= self._last or pattern == "0":
            if not self._is_blank():
                self._out.append(here)
                self._inside = True
            elif not self._fill:
                self._out.append(" ")
            elif self._ends_at_point:
                self._out.append("0")
        if here != "\0":
            self._at += 1


def _ordinal(number: str) -> str:
    if number[0] == "#":
        return ""
    if not number[-1].isdigit():
        raise ValueRefused(f'"{number}" is not a number')
    return "TH" if number[-2:-1] == "1" else _ORDINALS.get(number[-1], "TH")


def _roman(of: Picture, number: int) -> str:
    if 1 <= number <= _MOST_ROMAN:
        text = ""
        for value, letters in _ROMAN:
            text += letters * (number // value)
            number %= value
    else:
        text = "#" * _ROMAN_WIDTH
    if "FM" not in of.has:
        text = text.rjust(_ROMAN_WIDTH)
    of_pattern = {"RN": text, "rn": text.lower()}
    if "FM" not in of.has:
        of_pattern |= {",": " ", "G": " "}
    return "".join(literal or of_pattern.get(pattern, "") for pattern, literal in of.nodes)


def _scientific(value: Decimal, scale: int) -> str:
    exponent = value.adjusted() if value else 0
    part = quotient(value, ONE.scaleb(exponent, WIDE), scale)
    sign = "-" if exponent < 0 else "+"
    return f"{'' if part < 0 else ' '}{part:f}e{sign}{abs(exponent):02}"


def _split(text: str) -> tuple[str, str]:
    """The number and its sign."""
    return (text[1:], "-") if text.startswith("-") else (text, "+")


@implements("to_char(numeric,text)")
def numeric_to_char(value: Decimal, text: str) -> str:
    of = picture(text)
    if "RN" in of.has:
        return _roman(of, int(nearest(value)))
    if "EEEE" in of.has:
        return _scientific(value, of.post)
    number, sign = _split(format(rounded(value, of.post), "f"))
    return _Writer(of, number, sign, of.post).written()


def _float_in_scientific(value: float, scale: int) -> str:
    text = f"{value:+.{scale}e}"
    return " " + text[1:] if text[0] == "+" else text


@implements("to_char(int4,text)")
def int4_to_char(value: int, text: str) -> str:
    of = picture(text)
    if "EEEE" in of.has:
        return _float_in_scientific(value, of.post)
    return int8_to_char(value, text)


@implements("to_char(int8,text)")
def int8_to_char(value: int, text: str) -> str:
    of = picture(text)
    if "RN" in of.has:
        return _roman(of, value)
    if "EEEE" in of.has:
        return _scientific(Decimal(value), of.post)
    number, sign = _split(str(value))
    if of.post:
        number = f"{number}.{'0' * of.post}"
    return _Writer(of, number, sign, of.post).written()


def _register(kind: str, most: int) -> None:
    @implements(f"to_char({kind},text)")
    def to_char(value: float, text: str) -> str:
        of = picture(text)
        if "RN" in of.has:
            return _roman(of, round(value))
        if "EEEE" in of.has:
            return _float_in_scientific(value, of.post)
        post = max(0, min(of.post, most - len(f"{abs(value):.0f}")))
        number, sign = _split(f"{value:.{post}f}")
        return _Writer(of, number, sign, post).written()


for _kind, _most in _FLOAT_DIGITS.items():
    _register(_kind, _most)


class _Reader:
    """Reads one number.

    Args:
        of: the picture.
        text: the number, in bytes.
    """

    def __init__(self, of: Picture, text: bytes) -> None:
        self._of, self._has, self._text = of, of.has, text
        self._at = 0
        self._sign = " "
        self._digits = ""
        self._pre = self._post = 0
        self._after_point = False

    def read(self) -> Decimal:
        for pattern, literal in self._of.nodes:
            if self._at >= len(self._text):
                break
            if literal:
                self._skip()
            elif pattern in ("9", "0", ".", "D"):
                self._digit(pattern)
                self._at += 1
            else:
                self._other(pattern)
        value = numeric(self._sign + self._digits.removesuffix("."))
        found = rounded(value, self._post)
        if found and found.adjusted() >= self._of.pre:
            raise ValueRefused("numeric field overflow")
        return found

    def _here(self) -> str:
        return chr(self._text[self._at]) if self._at < len(self._text) else ""

    def _skip(self) -> None:
        """Skip a character, which may have several bytes."""
        lead = self._text[self._at]
        self._at += 4 if lead >= 0xF0 else 3 if lead >= 0xE0 else 2 if lead >= 0xC0 else 1

    def _skip_others(self, count: int) -> None:
        """Skip so many characters that are no part of a number."""
        for _ in range(count):
            here = self._here()
            if not here or here in "0123456789.,+-":
                break
            self._skip()

    def _other(self, pattern: str) -> None:
        here = self._here()
        if pattern in (",", "G"):
            if "FM" not in self._has and here == ",":
                self._at += 1
        elif pattern in ("MI", "PL", "SG"):
            if (here == "-" and pattern != "PL") or (here == "+" and pattern != "MI"):
                self._sign = here
                self._at += 1
            else:
                self._skip_others(1)
        elif pattern.upper() == "TH" and "." not in self._has:
            self._skip_others(2)

    def _digit(self, pattern: str) -> None:
        if self._here() == " ":
            self._at += 1
        if self._sign == " " and pattern in "90" and not self._pre + self._post:
            self._first_sign()
        here, was_read = self._here(), False
        if not here:
            return
        if here.isascii() and here.isdigit():
            if self._after_point and self._post == self._of.post:
                return
            self._digits += here
            if self._after_point:
                self._post += 1
            else:
                self._pre += 1
            was_read = True
        elif "." in self._has and not self._after_point and here == ".":
            self._digits += "."
            self._after_point = was_read = True
        if self._sign == " " and self._pre + self._post:
            self._last_sign(was_read)

    def _first_sign(self) -> None:
        here = self._here()
        if "S" in self._has and self._of.sign == BEFORE:
            signs = {"-": "-", "+": "+"}
        else:
            signs = {"-": "-", "+": "+"} | ({"<": "-"} if "PR" in self._has else {})
        if here in signs:
            self._sign = signs[here]
            self._at += 1

    def _last_sign(self, was_read: bool) -> None:
        after = self._text[self._at + 1 : self._at + 2]
        if "S" in self._has:
            if was_read and after in (b"-", b"+"):
                self._sign = after.decode()
                self._at += 1
        elif not was_read and self._has & {"PL", "MI"} and self._here() in "-+":
            self._sign = self._here()


@implements("to_number(text,text)", may_be_null=True)
def to_number(text: str, by: str) -> Decimal | None:
    if not by:
        return None
    of = picture(by)
    if "EEEE" in of.has:
        raise ValueRefused('"EEEE" not supported for input')
    if "RN" in of.has:
        raise ValueRefused('the pattern "RN" is not available in to_number')
    return _Reader(of, text.encode()).read()
